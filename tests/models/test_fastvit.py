"""FastViT: published sizes, the fused form against timm's, mixers by stage."""

import dataclasses

import pytest
import torch
from parity.compare import randomise, relative_error
from support.peers import timm
from support.published import Published, check_published, sizes
from support.registered import pictures, tiny
from support.undrawn import without_data
from timm.utils import reparameterize_model
from torch import nn

import vitrail
from vitrail.errors import CheckpointError, ConfigError, Unsupported
from vitrail.layers.reparam import RepMixer, RepPosition
from vitrail.models.checkpoint.families import fastvit as words
from vitrail.models.fastvit import FASTVIT, AttentionMixer, FastViT
from vitrail.models.registry import create

# timm counts them fused, which makes parameters fewer by 0.3 to 0.9 %.
TIMM = "timm's results/benchmark-infer-amp-nchw-pt291-cu130-5090.csv"
PUBLISHED = {
    "fastvit_t8": Published(4.00, 0.69, TIMM),
    "fastvit_t12": Published(7.51, 1.39, TIMM),
    "fastvit_s12": Published(9.43, 1.80, TIMM),
    "fastvit_sa12": Published(11.55, 1.94, TIMM),
    "fastvit_sa24": Published(21.50, 3.77, TIMM),
    "fastvit_sa36": Published(31.46, 5.59, TIMM),
    "fastvit_ma36": Published(43.98, 7.82, TIMM),
}
SMALL = {"layers": (1, 1, 2, 1), "embed_dims": (32, 32, 64, 64), "num_classes": 7}


@sizes(FASTVIT.presets)
def test_published_size(name):
    check_published(name, PUBLISHED[name])


@pytest.mark.parametrize("name", FASTVIT.presets)
def test_fused_size_is_that_of_timm(name):
    with without_data():
        model = FastViT(dataclasses.replace(FASTVIT.presets[name].config, fused=True))
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    # Here the norms of the MLPs and of attention go too, which timm keeps.
    assert millions == pytest.approx(PUBLISHED[name].parameters, rel=0.002)


@pytest.mark.parametrize("architecture", ["fastvit_t8", "fastvit_s12", "fastvit_sa12"])
def test_fused_models_agree_with_timms(architecture, tmp_path):
    peer = randomise(timm.create_model(architecture, **SMALL)).double()
    timm.models._hub.save_for_hf(peer, tmp_path, model_args=SMALL, safe_serialization=True)
    model = vitrail.load(tmp_path, dtype=torch.float64).fuse()
    images = torch.randn(2, 3, 64, 96, dtype=torch.float64)
    with torch.no_grad():
        plain, theirs, ours = peer(images), reparameterize_model(peer).double()(images), model(images)
    assert relative_error(theirs, ours) <= 1e-10
    assert relative_error(plain, ours) <= 1e-10


def test_fused_models_are_plain():
    names = {type(module).__name__ for module in tiny("fastvit_t8").fuse().modules() if not list(module.children())}
    assert names == {"Conv2d", "GELU", "Linear", "Identity", "Dropout", "DropPath", "LayerScale", "MeanPool", "ReLU"}


def test_each_stage_has_its_mixer():
    model = tiny("fastvit_sa12")
    kinds = [type(stage.blocks[0].mixer) for stage in model.stages]
    assert kinds == [RepMixer, RepMixer, RepMixer, AttentionMixer]
    assert isinstance(model.stages[3].downsample[-1], RepPosition)
    assert not any(isinstance(module, RepPosition) for module in model.stages[2].modules())


def test_fused_mixers_have_no_residual_left():
    model = tiny("fastvit_t8").fuse()
    assert all(type(block.mixer) is nn.Conv2d for block in model.blocks)


def test_fused_attention_shows_the_same_weights():
    model = randomise(tiny("fastvit_sa12")).double()
    images = pictures(model, dtype=torch.float64)
    branch = model.blocks[-1].mixer.branch
    maps = torch.randn(1, 128, 3, 2, dtype=torch.float64)
    tokens = maps.flatten(2).transpose(1, 2)
    before = branch.mix.attention.weights(branch.norm(maps).flatten(2).transpose(1, 2), (3, 2))
    model.fuse()(images)
    torch.testing.assert_close(model.blocks[-1].mixer.branch.attention.weights(tokens, (3, 2)), before)


def test_bad_configs_are_told():
    with pytest.raises(ConfigError, match=r"dims.* 48 .*32"):
        create("fastvit_t8", dims=(16, 32, 48, 64))
    with pytest.raises(ConfigError, match=r"mixers.* 2 .*depths"):
        create("fastvit_t8", mixers=("rep", "attention"))


def test_timm_takes_the_form_that_learns():
    with pytest.raises(Unsupported, match="fused"):
        words.TIMM.write(tiny("fastvit_t8").fuse())
    with pytest.raises(CheckpointError, match="inference_mode"):
        words.TIMM.options["inference_mode"](True)
