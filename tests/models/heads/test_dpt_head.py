"""DPT on plain and staged backbones; the layers that it reads; what it refuses."""

import pytest
import torch
from support.registered import tiny

from vitrail.errors import ConfigError
from vitrail.models.heads import DptConfig

SMALL = {"dim": 8, "widths": (4, 4, 4, 4)}


@pytest.mark.parametrize("name", ["vit_tiny_patch16", "resnet18", "swin_tiny_patch4_window7_224"])
def test_any_backbone(name):
    model = tiny(name).eval()
    head = DptConfig(**SMALL).build(model).eval()
    images = torch.randn(2, 3, *model.config.image_size)
    values = head(head.read(model, images))
    assert values.ndim == 3
    assert bool((head.positive(values) > 0).all())
    head.zero_grad()
    values.sum().backward()
    assert [name for name, one in head.named_parameters() if one.grad is None] == []


def test_layers_at_even_distances():
    assert DptConfig().chosen(12) == (2, 5, 8, 11)
    assert DptConfig().chosen(24) == (5, 11, 17, 23)
    assert DptConfig().chosen(2) == (0, 0, 0, 1)
    assert DptConfig(layers=(0, 1, 2, 3)).chosen(12) == (0, 1, 2, 3)


def test_relu_cuts_off():
    head = DptConfig(**SMALL, output="relu").build(tiny("resnet18"))
    assert head.positive(torch.tensor([-1.0, 2.0])).tolist() == [0, 2]


def test_values_beyond_the_limits_come_back():
    head = DptConfig(**SMALL).build(tiny("resnet18")).train()
    values = torch.tensor([-30.0, 0.5, 30.0], requires_grad=True)
    found = head.positive(values)
    (found.log() ** 2).sum().backward()
    assert (values.grad.sign() == torch.tensor([-1.0, 1.0, 1.0])).all()
    assert torch.equal(found, head.eval().positive(values))


def test_what_cannot_be_read():
    with pytest.raises(ConfigError, match="class token"):
        DptConfig(**SMALL, readout="project").build(tiny("resnet18"))
    with pytest.raises(ConfigError, match="widths"):
        DptConfig(dim=8, widths=(4, 4)).build(tiny("vit_tiny_patch16"))
