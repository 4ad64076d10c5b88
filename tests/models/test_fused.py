"""Models that fold into plain layers: in place, once, and saved and loaded in their fused form."""

import copy

import pytest
import torch
from parity.compare import randomise
from support.registered import pictures, tiny, to_trace
from support.whole_graph import compiled_whole
from torch import nn

import vitrail
from vitrail.layers.fuse import Fusable
from vitrail.models.fused import FusedStaged
from vitrail.models.registry import FAMILIES, build, create, family_of

NAMES = [
    name
    for family in FAMILIES.values()
    if issubclass(family.module, FusedStaged)
    for name in (next(iter(family.presets)), list(family.presets)[-1])
]
every_name = pytest.mark.parametrize("name", NAMES)


@every_name
def test_outputs_stay_and_weights_leave(name):
    model = randomise(tiny(name)).double()
    images = pictures(model, dtype=torch.float64)
    learning = copy.deepcopy(model)
    assert model.fuse() is model
    torch.testing.assert_close(model(images), learning(images), atol=1e-10, rtol=1e-10)
    for mine, theirs in zip(model.features(images).pyramid, learning.features(images).pyramid, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-10, rtol=1e-10)
    for kind in ("parameters", "buffers", "modules"):
        assert len(list(getattr(model, kind)())) < len(list(getattr(learning, kind)()))
    assert sum(p.numel() for p in model.parameters()) < sum(p.numel() for p in learning.parameters())
    assert not any(isinstance(module, Fusable | nn.BatchNorm1d | nn.BatchNorm2d) for module in model.modules())


@every_name
def test_float32_is_within_1e_5(name):
    model = randomise(tiny(name))
    images = pictures(model)
    expected = model(images)
    found = model.fuse()(images)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@every_name
def test_fusing_twice_is_fusing_once(name):
    model = randomise(tiny(name)).fuse()
    before = copy.deepcopy(model.state_dict())
    assert model.fuse().state_dict().keys() == before.keys()
    assert model.config.fused


@every_name
def test_fused_models_are_saved_and_loaded(name, tmp_path):
    model = randomise(tiny(name)).fuse()
    vitrail.save(model, tmp_path)
    again = vitrail.load(tmp_path)
    assert again.config == model.config
    images = pictures(model)
    assert torch.equal(again(images), model(images))


@every_name
def test_a_config_builds_the_form_that_it_names(name):
    model = tiny(name)
    fused = build(family_of(model), model.fuse().config)
    assert fused.state_dict().keys() == model.state_dict().keys()
    assert fused.features(pictures(fused)).grid == (3, 2)


# One a family: tracing takes seconds, and layers of plain kinds are left.
CUT = [pytest.param(name, to_trace(name), id=name) for name in NAMES[::2]]
WHOLE = [pytest.param(name, {}, id=f"{name}-whole", marks=pytest.mark.slow) for name in NAMES[::2]]


@pytest.mark.parametrize(("name", "changes"), [*CUT, *WHOLE])
def test_fused_models_compile_export_and_take_a_new_head(name, changes):
    model = randomise(tiny(name, **changes)).fuse()
    images = pictures(model)
    torch.testing.assert_close(compiled_whole(model)(images), model(images))
    program = torch.export.export(model, (images,)).module()
    torch.testing.assert_close(program(images), model(images), atol=1e-5, rtol=1e-5)
    model.reset_head(3)
    assert model(images).shape == (2, 3)


def test_models_begin_in_the_form_in_which_they_learn():
    assert not create("fastvit_t8", dims=(8, 8, 8, 8), depths=(1, 1, 1, 1)).config.fused
