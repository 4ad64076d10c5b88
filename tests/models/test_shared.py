"""Several readers of one backbone."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from support.registered import tiny
from torch import Tensor

from vitrail.errors import ResampledNotice
from vitrail.models.backbone import Backbone, Features
from vitrail.models.shared import Shared

SIZE = 32


@contextmanager
def counted(model: Backbone) -> Iterator[list[int]]:
    """How often the first block runs."""
    runs: list[int] = []
    hook = model.blocks[0].register_forward_hook(lambda *_: runs.append(1))
    try:
        yield runs
    finally:
        hook.remove()


def images() -> Tensor:
    return torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))


def shared(name: str = "vit_tiny_patch16") -> Shared:
    torch.manual_seed(0)
    return Shared(tiny(name, num_classes=0, image_size=SIZE).eval())


def same(one: Features, other: Features) -> None:
    assert torch.equal(one.patches, other.patches)
    assert torch.equal(one.prefix, other.prefix)
    assert all(torch.equal(first, second) for first, second in zip(one.pyramid, other.pyramid, strict=True))


@pytest.mark.parametrize("name", ["vit_tiny_patch16", "xcit_nano_12_p16", "resnet18"])
def test_one_pass_gives_features_and_intermediates(name: str) -> None:
    model, pictures = shared(name).backbone, images()
    features, (first, last) = model.read(pictures, (0, len(model.blocks) - 1))
    same(features, model.features(pictures))
    for one, other in zip((first, last), model.intermediates(pictures, (0, -1)), strict=True):
        same(one, other)


def test_readers_share_one_pass() -> None:
    one, pictures = shared(), images()
    one.layers = (0, 1)
    first, second = one.view(0), one.view(5)
    with counted(one.backbone) as runs, torch.no_grad():
        with one.reading(pictures) as features:
            same(first.features(pictures), features)
            assert second(pictures).shape == (2, 5)
            same(first.intermediates(pictures, (1,))[0], one.backbone.intermediates(pictures, (1,))[0])
        assert len(runs) == 2  # one for the comparison
        first.features(pictures)
        assert len(runs) == 3
        with one.reading(pictures):
            first.features(pictures.clone())
        assert len(runs) == 5  # other images are another pass


def test_each_view_has_its_own_head() -> None:
    one = shared()
    three, five = one.view(3), one.view(5)
    assert (three.head.out_features, five.head.out_features) == (3, 5)
    assert isinstance(one.backbone.head, torch.nn.Identity)
    assert three.blocks is one.backbone.blocks
    assert {id(p) for p in three.blocks.parameters()} == {id(p) for p in one.backbone.blocks.parameters()}


def test_a_copy_reads_its_own_backbone() -> None:
    one = shared()
    one.view(3)
    other = copy.deepcopy(one)
    with torch.no_grad():
        for parameter in other.backbone.parameters():
            parameter.zero_()
    pictures = images()
    with torch.no_grad(), other.reading(pictures) as features:
        assert not features.patches.any()
        assert torch.equal(other.views[0](pictures), other.views[0].head.bias.expand(2, -1))
    assert one.backbone.features(pictures).patches.any()


def test_views_follow_the_size_of_the_backbone() -> None:
    one = shared()
    view = one.view(3)
    with pytest.warns(ResampledNotice):
        one.backbone.resize(64)
    with one.reading(torch.randn(1, 3, 64, 64)):
        assert view.config.image_size == (64, 64)
        assert view.config.num_classes == 3
