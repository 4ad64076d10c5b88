"""LeViT: published sizes, two heads, folding of all batch norms, and tables that follow the image size."""

import copy

import pytest
import torch
from support.published import Published, check_published, sizes
from support.registered import pictures, tiny
from torch import nn

import vitrail
from vitrail.errors import ResampledNotice, Unsupported
from vitrail.models.backbone import Backbone
from vitrail.models.checkpoint.families.levit import TIMM
from vitrail.models.registry import create

SOURCE = "arXiv:2104.01136, table 3, for the MACs; timm 1.0, results/benchmark-infer-*.csv, for the parameters"
PUBLISHED = {
    "levit_128s": Published(7.78, 0.305, SOURCE),
    "levit_128": Published(9.21, 0.406, SOURCE),
    "levit_192": Published(10.95, 0.658, SOURCE),
    "levit_256": Published(18.89, 1.120, SOURCE),
    "levit_384": Published(39.13, 2.353, SOURCE),
}


def seen(model: Backbone) -> Backbone:
    """The model with random statistics of its norms."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_mean.normal_(std=0.3)
            module.running_var.uniform_(0.5, 2.0)
    return model


@sizes(PUBLISHED)
def test_has_the_published_size(name):
    check_published(name, PUBLISHED[name])


def test_the_answer_is_the_mean_of_two_heads():
    model = tiny("levit_128s")
    features = model.features(pictures(model))
    by_label, by_teacher = model.heads(features)
    assert not torch.allclose(by_label, by_teacher)
    torch.testing.assert_close(model.classify(features), (by_label + by_teacher) / 2)
    alone = tiny("levit_128s", distilled=False)
    assert alone.distillation_head is None
    by_label, by_teacher = alone.heads(features)
    assert torch.equal(by_label, by_teacher)


def test_fusing_folds_every_norm_and_changes_nothing_else():
    model = seen(tiny("levit_192"))
    images = pictures(model)
    expected = model.features(images)
    fused = copy.deepcopy(model).fuse()
    assert not any(isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) for module in fused.modules())
    assert sum(p.numel() for p in fused.parameters()) < sum(p.numel() for p in model.parameters())
    found = fused.features(images)
    for ours, theirs in zip(found.pyramid, expected.pyramid, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(fused(images), model(images), atol=1e-5, rtol=1e-5)
    double = copy.deepcopy(model).double()
    exact = double(images.double())
    torch.testing.assert_close(double.fuse()(images.double()), exact, atol=1e-12, rtol=1e-12)


def test_a_fused_model_is_saved_and_loaded_as_such(tmp_path):
    model = seen(tiny("levit_128s")).fuse()
    assert model.fuse() is model
    vitrail.save(model, tmp_path / "levit")
    loaded = vitrail.load(tmp_path / "levit")
    images = pictures(model)
    assert loaded.config.fused
    assert torch.equal(loaded.eval()(images), model(images))
    model.reset_head(3)
    assert isinstance(model.head, nn.Linear)
    with pytest.raises(Unsupported, match="fused"):
        TIMM.write(model)


def test_blocks_begin_as_the_identity():
    model = create("levit_128s", image_size=64, num_classes=3).eval()
    images = torch.randn(1, 3, 64, 64)
    first, second, *_ = model.intermediates(images)
    assert torch.equal(first.patches, second.patches)


def test_tables_of_attention_between_stages_belong_to_the_finer_grid():
    model = tiny("levit_128s", image_size=208)  # 13 x 13, 7 x 7, 4 x 4
    assert [stage.downsample.attention.bias.grid for stage in model.stages[1:]] == [(13, 13), (7, 7)]
    with pytest.warns(ResampledNotice, match=r"208 x 208 .*96 x 160"):
        model.resize((96, 160))
    assert [stage.downsample.attention.bias.grid for stage in model.stages[1:]] == [(6, 10), (3, 5)]
    assert [stage.blocks[0].attention.bias.grid for stage in model.stages] == [(6, 10), (3, 5), (2, 3)]
    assert model(torch.randn(1, 3, 96, 160)).shape == (1, 5)


def test_a_batch_of_one_can_learn():
    model = tiny("levit_128s").train()
    model(pictures(model, batch=1)).sum().backward()
    assert model.head.norm.weight.grad.abs().max() > 0
