"""Errors for options that a family does not support."""

import pytest
from support.registered import tiny

import vitrail
from vitrail.errors import ConfigError, Unsupported


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("resnet50", {"dims": (255, 512, 1024, 2048)}, r"dims.* 255.* 4"),
        ("fastvit_sa12", {"head_dim": 7}, r"head_dim.* 7.* 512"),
        ("caformer_s18", {"head_dim": 600}, r"head_dim.* 600.* 320"),
    ],
)
def test_widths_that_do_not_divide(name, changes, message):
    with pytest.raises(ConfigError, match=message):
        vitrail.create(name, **changes)


def test_a_name_in_capitals_leads_to_ours():
    with pytest.raises(ConfigError, match="'levit_128s'"):
        vitrail.create("levit_128S")


@pytest.mark.parametrize("name", ["vit_tiny_patch16", "resnet18"])
def test_a_model_that_is_not_made_for_it_does_not_fuse(name):
    with pytest.raises(Unsupported, match="without fuse"):
        tiny(name).fuse()
