"""Which attention layers a model has, and what is known of a model before it runs."""

import pytest
from support.registered import tiny
from torch import nn

from vitrail.errors import Unsupported
from vitrail.explain.attention.layer import attention_layers, has_class_token, prefix_names


def test_wrappers_are_opened() -> None:
    model = tiny()
    wrapped = nn.DataParallel(model)
    assert [layer.name for layer in attention_layers(wrapped)] == ["blocks.0.attention", "blocks.1.attention"]


def test_what_stands_in_its_tokens_place_has_no_residual() -> None:
    kinds = {layer.name.split(".")[2]: layer.residual for layer in attention_layers(tiny("levit_128s"))}
    assert kinds == {"blocks": True, "downsample": False}
    assert all(layer.residual and layer.hooked is layer.module for layer in attention_layers(tiny()))


def test_class_tokens_are_known() -> None:
    assert has_class_token(tiny())
    assert not has_class_token(tiny(class_token=False, pool="mean"))
    with pytest.raises(Unsupported, match="ResNet has no attention"):
        attention_layers(tiny("resnet18"))


def test_prefix_tokens_have_names() -> None:
    assert prefix_names(tiny(), 1) == ("class token",)
    assert prefix_names(tiny("deit_tiny_distilled_patch16"), 2) == ("class token", "distillation token")
    assert prefix_names(tiny(class_token=False, pool="mean", registers=2), 2) == ("register 1", "register 2")
