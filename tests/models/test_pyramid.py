"""Stages of transformer blocks: the grid of each stage, and the class token in the last."""

import pytest
import torch
from support.registered import tiny

from vitrail.models.pyramid import Pyramid, PyramidConfig


def test_grids_follow_the_windows():
    config = tiny("pvt_v2_b0").config
    size = (64, 100)
    expected = []
    for window in config.windows():
        size = window.grid(size)
        expected.append(size)
    assert config.grids((64, 100)) == tuple(expected) == ((16, 25), (8, 13), (4, 7), (2, 4))


def test_the_class_token_is_in_the_last_stage():
    for name, has_one in (("cvt_13", True), ("pvt_v2_b0", False)):
        model = tiny(name)
        assert isinstance(model, Pyramid)
        *earlier, last = [model.prefix(stage) for stage in range(len(model.stages))]
        assert earlier == [None] * len(earlier)
        assert (last is not None) == has_one
        assert model.features(torch.randn(1, 3, *model.config.image_size)).prefix.shape[1] == has_one


def test_a_family_says_what_its_stages_are():
    config = PyramidConfig(dims=(8,), depths=(1,), num_heads=(1,), mlp_ratios=(2.0,))
    for asked in (config.windows, lambda: config.attention(0)):
        with pytest.raises(NotImplementedError, match="PyramidConfig"):
            asked()
