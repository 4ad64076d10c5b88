"""The contract of all registered models: cheap checks for all names, the whole suite for each set of options."""

import copy
import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.allowed import check_allowed
from support.registered import (
    image_size,
    is_tied,
    one_of_each_design,
    one_of_each_family,
    option_sets,
    pictures,
    resized,
    shrunk,
    tiny,
    to_trace,
)
from support.undrawn import without_data
from support.whole_graph import compiled_whole

from vitrail.config import from_dict, to_dict
from vitrail.errors import InputError, Unsupported
from vitrail.models.backbone import Backbone, Features
from vitrail.models.registry import FAMILIES, build, list_models, presets, resolve

every_name = pytest.mark.parametrize("name", list_models())
OPTION_SETS = list(option_sets())
every_option_set = pytest.mark.parametrize("name", OPTION_SETS)
every_family = pytest.mark.parametrize("name", one_of_each_family())
every_design = pytest.mark.parametrize("name", one_of_each_design())


# One model of tokens, one of stages with windows, one of convolutions: for what is slow and differs little otherwise.
FEW = ("vit_tiny_patch16", "swin_tiny_patch4_window7", "resnet18")
CUT = [pytest.param(name, to_trace(name), id=name) for name in FEW]
WHOLE = [pytest.param(name, {}, id=f"{name}-whole", marks=pytest.mark.slow) for name in FEW]
a_few = pytest.mark.parametrize(("name", "changes"), [*CUT, *WHOLE])


def gradients(model: Backbone, images: torch.Tensor) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    model.zero_grad()
    model(images).square().sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@every_name
def test_name_builds_at_its_full_size(name):
    family, config = resolve(name)
    with without_data():
        model = build(family, config)
    assert isinstance(model, family.module)
    assert model.config == config
    assert config.grid(config.image_size)


@every_name
def test_config_survives_json(name):
    family, config = resolve(name)
    plain = json.loads(json.dumps(to_dict(config)))
    assert from_dict(family.config, plain) == config
    assert from_dict(family.config, plain | {"num_classes": 7}) != config


@every_name
def test_name_with_size_and_tag_resolves(name):
    family, config = resolve(name)
    assert resolve(f"{name}_448.tag_in1k") == (family, replace(config, image_size=(448, 448)))
    assert resolve(f"{name}.tag_in1k") == (family, config)


def test_families_are_told():
    for key, family in FAMILIES.items():
        assert family.name == key
        assert family.paper
        assert family.idea.endswith(".")
        assert all(isinstance(preset.config, family.config) for preset in family.presets.values())
    assert len(presets()) == sum(len(family.presets) for family in FAMILIES.values()), "a name stands in two families"


@every_option_set
def test_features_keep_the_contract(name):
    model = tiny(name)
    images = pictures(model)
    features = model.features(images)
    rows, columns = model.config.grid(model.config.image_size)
    assert isinstance(features, Features)
    assert features.grid == (rows, columns)
    assert features.patches.shape[:2] == (2, rows * columns)
    assert features.prefix.shape[::2] == features.patches.shape[::2]
    assert torch.equal(features.pyramid[-1].flatten(2).transpose(1, 2), features.patches)
    assert [level.shape[2:] for level in features.pyramid] == list(model.config.grids(model.config.image_size))
    logits = model(images)
    assert logits.shape[0] == 2
    assert torch.equal(logits, model.classify(features))
    torch.testing.assert_close(model(images[1:]), logits[1:], atol=1e-5, rtol=1e-5)


@every_option_set
def test_intermediates_are_the_blocks(name):
    model = tiny(name)
    images = pictures(model)
    first, *_, before, last = found = [model.intermediates(images)[0], *model.intermediates(images)]
    assert len(found) == 1 + len(model.blocks)
    assert before.patches.shape != last.patches.shape or not torch.allclose(before.patches, last.patches)
    assert [level.shape for level in last.pyramid] == [level.shape for level in model.features(images).pyramid]
    again = model.intermediates(images, layers=[-1, 0])
    assert torch.equal(again[0].patches, last.patches)
    assert torch.equal(again[1].prefix, first.prefix)


@every_option_set
def test_gradients_reach_every_parameter(name):
    model = tiny(name).train()
    images = pictures(model)
    found = gradients(model, images)
    dead = {path for path, gradient in found.items() if not gradient.isfinite().all() or not gradient.abs().max() > 0}
    if dead:  # where a class token is pooled, what patches alone read in the last block is for dense tasks
        model.zero_grad()
        model.features(images).patches.pow(3).sum().backward()
        dead -= {path for path, p in model.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    assert not dead


@every_option_set
def test_fresh_weights_give_a_sane_start(name):
    family, _ = resolve(name)
    model = build(family, tiny(name).config).eval()
    logits = model(pictures(model))
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1])).item()
    assert abs(loss - math.log(logits.shape[1])) < 0.5


@every_option_set
def test_state_dict_and_deepcopy_keep_it(name):
    model, other = tiny(name), tiny(name)
    images = pictures(model)
    expected = model(images)
    assert not torch.equal(other(images), expected)
    other.load_state_dict(model.state_dict(), strict=True)
    for twin in (model, other, copy.deepcopy(model)):
        assert torch.equal(twin(images), expected)


@every_option_set
def test_bfloat16_is_near_float32(name):
    model = tiny(name)
    images = pictures(model)
    expected = model(images)
    found = copy.deepcopy(model).bfloat16()(images.bfloat16())
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, atol=0.1 * expected.abs().max().item(), rtol=0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = model(images)
    torch.testing.assert_close(mixed.float(), expected, atol=0.1 * expected.abs().max().item(), rtol=0.1)


@pytest.mark.parametrize("name", [name for name in OPTION_SETS if is_tied(name)])
def test_weights_of_one_grid_do_not_move(name):
    with pytest.raises(Unsupported, match="dynamic_size"):
        tiny(name, dynamic_size=True)
    model = tiny(name)
    with pytest.raises(InputError, match="image_size"):
        model.resize(image_size(model.config, (4, 5)))


@pytest.mark.parametrize("name", [name for name in OPTION_SETS if not is_tied(name)])
@pytest.mark.filterwarnings("ignore::vitrail.errors.ResampledNotice")
def test_dynamic_size_is_a_resized_copy(name):
    model = tiny(name, dynamic_size=True)
    for grid in ((2, 5), (4, 4)):
        size = image_size(model.config, grid)
        images = torch.randn(2, model.config.channels, *size)
        expected = model(images)
        torch.testing.assert_close(copy.deepcopy(model).resize(size)(images), expected, atol=1e-5, rtol=1e-5)


@every_option_set
def test_checkpointing_gives_the_same_gradients(name):
    rates = {"dropout": 0.2, "drop_path": 0.4}  # what is dropped is drawn anew where it is not the same again
    model = tiny(name, **{rate: value for rate, value in rates.items() if hasattr(shrunk(name), rate)}).train()
    images = pictures(model, batch=4)
    kept = gradients(model, images)
    model.checkpointing = True
    calls = []
    handles = [block.register_forward_pre_hook(lambda *_: calls.append(1)) for block in model.blocks]
    recomputed = gradients(model, images)
    assert len(calls) == 2 * len(handles)  # once forward, once more in the backward pass
    torch.testing.assert_close(recomputed, kept)


def compiles(model: Backbone, images: torch.Tensor) -> None:
    torch.testing.assert_close(compiled_whole(model)(images), model(images))


def exports(model: Backbone, images: torch.Tensor, **options: Any) -> None:
    exported = torch.export.export(model, (images,), **options)
    check_allowed(exported.graph)
    program = exported.module()
    for batch in (1, 3) if options.get("dynamic_shapes") else (2,):
        images = torch.randn(batch, *images.shape[1:])
        torch.testing.assert_close(program(images), model(images), atol=1e-5, rtol=1e-5)


ANY_BATCH = {"dynamic_shapes": {"images": {0: torch.export.Dim("batch")}}}


@every_design
@pytest.mark.filterwarnings("ignore::vitrail.errors.ResampledNotice")
def test_exports_at_another_size(name):
    model = resized(name, **to_trace(name))
    exports(model, pictures(model))


@a_few  # to compile takes three times as long as to export
def test_compiles(name, changes):
    model = tiny(name, **changes)
    compiles(model, pictures(model))


@pytest.mark.slow
@every_design
@pytest.mark.filterwarnings("ignore::vitrail.errors.ResampledNotice")
def test_all_stages_compile_and_export_at_two_sizes(name):
    for model in (tiny(name), resized(name)):
        compiles(model, pictures(model))
        exports(model, pictures(model))


@pytest.mark.slow
@every_option_set
def test_every_option_compiles_and_exports(name):
    model = tiny(name)
    compiles(model, pictures(model))
    exports(model, pictures(model), **ANY_BATCH)


@a_few
def test_exports_with_any_batch(name, changes):
    model = tiny(name, **changes)
    exports(model, pictures(model), **ANY_BATCH)


@pytest.mark.slow  # that of a layer is quick
def test_exports_strictly():
    model = tiny()
    exports(model, pictures(model), **ANY_BATCH, strict=True)


@a_few
def test_exported_features_are_named(name, changes):
    model = tiny(name, **changes)

    class FeaturesOnly(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, images):
            return self.model.features(images)

    images = pictures(model)
    found = torch.export.export(FeaturesOnly(), (images,)).module()(images)
    assert isinstance(found, Features)
    torch.testing.assert_close(found.patches, model.features(images).patches)


@pytest.mark.parametrize(("name", "changes"), [CUT[0], *WHOLE])
def test_compiled_gradients_are_the_same(name, changes):
    model = tiny(name, **changes).train()
    images = pictures(model)
    expected = gradients(model, images)
    compiled = compiled_whole(model, backend="aot_eager")
    model.zero_grad()
    compiled(images).square().sum().backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_inductor_agrees():
    model = tiny(depth=1)
    images = pictures(model)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(model, fullgraph=True)(images), model(images), atol=1e-4, rtol=1e-4)


@every_family
def test_reset_head_changes_the_classes(name):
    model = tiny(name).double()
    images = pictures(model, dtype=torch.float64)
    features = model.features(images)
    model.reset_head(11)
    assert model(images).shape == (2, 11)
    assert model.config.num_classes == 11
    assert torch.equal(model.features(images).patches, features.patches)
    model.reset_head(0)
    assert model(images).shape == model.pooled(features).shape
