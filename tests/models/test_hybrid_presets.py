"""Hybrids of a ResNet and a ViT: timm's names, conversion to timm and back."""

from pathlib import Path

import pytest
import torch
from parity.compare import randomise
from support.peers import timm
from support.published import Published, check_published, sizes
from support.registered import tiny

import vitrail
from vitrail.errors import Unsupported
from vitrail.models.checkpoint.files import Weights
from vitrail.models.checkpoint.timm import Timm
from vitrail.models.registry import create, resolve

# timm's benchmark tables. They count norms too, and the standardisation of filters: 3 % where the ViT is small.
PUBLISHED = {
    "vit_tiny_r_s16_p8": Published(6.34, 0.44, "timm"),
    "vit_small_r26_s32": Published(36.43, 3.56, "timm"),
    "vit_base_r26_s32": Published(101.38, 6.81, "timm"),
    "vit_base_r50_s16": Published(98.66, 21.66, "timm: 97.89 M without a head, and 0.77 M for 1000 classes"),
    "vit_large_r50_s32": Published(328.99, 19.58, "timm"),
}


@sizes(PUBLISHED)
def test_published_sizes(name):
    check_published(name, PUBLISHED[name], tolerance=0.03)


@pytest.mark.parametrize("name", ["vit_tiny_r_s16_p8", "vit_base_r50_s16"])
def test_timm_builds_what_is_written(name, tmp_path: Path):
    model = randomise(create(name, dim=64, depth=1, num_heads=4, num_classes=7, image_size=(64, 96)))
    vitrail.save(model, tmp_path / "ours")
    vitrail.convert(tmp_path / "ours", tmp_path / "theirs", to="timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'theirs'}", pretrained=True).eval()
    images = torch.randn(2, 3, 64, 96)
    torch.testing.assert_close(theirs(images), model(images), atol=1e-4, rtol=1e-4)
    assert vitrail.load(tmp_path / "theirs").config.patch == resolve(name)[1].patch


def test_another_resnet_is_not_timms():
    model = tiny("vit_base_r50_s16")
    with pytest.raises(Unsupported, match=r"timm .*\(1, 1, 1\).* 16"):
        Timm().write(model)


def test_other_backbones_are_refused():
    theirs = timm.create_model("vit_small_resnet26d_224", depth=1)
    weights = Weights(path=Path("x"), tensors=theirs.state_dict(), metadata={})
    with pytest.raises(Unsupported, match="BiT"):
        Timm().read(weights, None)
