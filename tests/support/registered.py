"""Everything that is registered, small enough for a test: what is added to the library arrives here by itself."""

import dataclasses
import functools
import json
import typing
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from vitrail.config import Choice, apply, to_dict
from vitrail.errors import ConfigError, InputError
from vitrail.models.backbone import Backbone, BackboneConfig
from vitrail.models.registry import FAMILIES, build, presets, resolve
from vitrail.models.staged import StagedConfig

M = TypeVar("M", bound=nn.Module)

SMALL = {
    "dim": 32,
    "depth": 2,
    "num_heads": 2,
    "num_classes": 5,
    "layer_scale": 0.5,
    "stem_dim": 16,
    "final_dim": 48,
    "attention_dims": (16, 24, 32),
    "attention_depths": (1, 1, 1),
}

# Smaller options than the defaults of a kind, for all of its tests: with a window of 7 x 7 or 64 landmarks, the 15
# patches of a test would all see each other, and the code that is special about the kind would never run.
SCALED: dict[str, dict[str, Any]] = {
    "window": {"size": (2, 3)},
    "performer": {"features": 8},
    "linformer": {"length": 4},
    "local": {"size": (3, 3)},
    "neighbourhood": {"size": (3, 3)},
    "dilated": {"size": (1, 3)},
    "block_diagonal": {"size": (2, 3)},
}

# Numbers that change what a layer does; flags and words are varied without being listed.
NUMBERS: dict[str, dict[str, Any]] = {
    "linear": {"size": (12, 12), "stride": (8, 8), "padding": (2, 2)},
    "conv": {"halvings": 2, "convs": 3},
    "resnet": {"size": (1, 1), "depths": (1, 2), "width": 16},
    "softmax": {"head_dim": 12, "temperature": 0.5},
    "deformable": {"groups": 2, "stride": 2, "kernel": 5, "reach": 3.0},
    "reduction": {"ratio": 3},
    "conv_projection": {"stride": 3},
    "biased": {"head_dim": 12, "value_ratio": 1.5},
    "performer": {"features": 24},
    "local": {"size": (1, 5)},
    "neighbourhood": {"size": (1, 5)},
    "dilated": {"size": (3, 1), "dilation": (1, 2)},
    "rope": {"reference": (7, 5), "theta": 100.0},
}


def variants(base: type[Choice]) -> dict[str, Any]:
    """Every kind, scaled down and with its own options, and once more for each other value of its flags and words."""
    found = {}
    for kind, cls in base.kinds.items():
        hints, names = typing.get_type_hints(cls), {field.name for field in dataclasses.fields(cls)}
        # One name may stand for a kind of patch and of attention: numbers are for the one that has such options.
        scaled, numbers = (table.get(kind, {}) for table in (SCALED, NUMBERS))
        default = cls(**scaled) if names >= scaled.keys() else cls()
        found[kind] = default
        if default != cls():
            found[f"{kind}-unscaled"] = cls()
        if numbers and names >= numbers.keys():
            found[f"{kind}-numbers"] = dataclasses.replace(default, **numbers)
        for field in dataclasses.fields(default):
            for value in _values(hints[field.name]):
                if value != getattr(default, field.name):
                    found[f"{kind}-{field.name}={value}"] = dataclasses.replace(default, **{field.name: value})
    return found


def _values(hint: Any) -> tuple[Any, ...]:
    if hint is bool:
        return (False, True)
    return typing.get_args(hint) if typing.get_origin(hint) is Literal else ()


@torch.no_grad()
def randomise(module: M) -> M:
    """The module with every parameter drawn anew: zeros and ones of an initialisation hide mistakes."""
    for parameter in module.parameters():
        parameter.normal_(std=0.3)
    return module


@functools.cache
def shrunk(name: str) -> BackboneConfig:
    """A preset's config with two blocks and a width of 32, patches of 8 pixels, and all its other options.

    A model of stages has one block in each and two in the last but one; attention in windows has windows of 2 x 2.
    """
    _, config = resolve(name)
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    changes: dict[str, Any] = {key: value for key, value in SMALL.items() if fields.get(key) is not None}
    if isinstance(config, StagedConfig):
        stages = len(config.depths)
        depths = (1,) * (stages - 2) + (2, 1) if stages > 1 else (2,)
        changes |= {"depths": depths, "dims": (8,) * (stages - 4) + (16, 32, 48, 64)[:stages]}
        if "num_heads" in fields:
            changes["num_heads"] = (1, 2, 2, 4)[:stages]
    if hasattr(fields.get("patch"), "depths"):
        changes["patch"] = {"depths": (1,) * len(fields["patch"].depths), "width": 16}
    elif hasattr(fields.get("patch"), "size"):
        overlaps = getattr(fields["patch"], "stride", None) is not None
        changes["patch"] = {"size": 8} | ({"stride": 4} if overlaps else {})
    if hasattr(fields.get("attention"), "size"):
        changes["attention"] = {"size": 2}
    if getattr(fields.get("mlp"), "hidden", None) is not None:
        changes["mlp"] = {"hidden": 48}
    try:
        config = apply(config, changes)
    except ConfigError:  # a family whose widths are multiples of one another
        config = apply(config, changes | {"dims": (16, 32, 64, 128)})
    return apply(config, {"image_size": image_size(config, (3, 2))})


def image_size(config: BackboneConfig, grid: tuple[int, int]) -> tuple[int, int]:
    """An image size of so many units, where the unit is the smallest power of two that gives so many patches."""
    for unit in (8, 16, 32, 64):
        size = (grid[0] * unit, grid[1] * unit)
        try:
            rows, columns = config.grid(size)
        except InputError:
            continue
        if rows >= grid[0] and columns >= grid[1]:
            return size
    raise AssertionError(f"no image size found for {config}")


def is_tied(name: str) -> bool:
    """Whether a preset's weights belong to one grid: another size is another model."""
    return resolve(name)[0].name == "mixer"


def resized(name: str, **changes: Any) -> Backbone:
    """A small model of a preset's options at another size than that of its weights, where it can have one."""
    model = tiny(name, **changes)
    other = image_size(model.config, (4, 5))
    return tiny(name, **changes | {"image_size": other}) if is_tied(name) else model.resize(other)


@functools.cache
def to_trace(name: str) -> dict[str, Any]:
    """What leaves as little of a small model as shows it whole, for what takes seconds a stage, as tracing does.

    Of three stages and more the two before the last, where a family can be cut; of blocks one of each kind.
    """
    config = shrunk(name)
    stages = len(config.depths) if isinstance(config, StagedConfig) else 0
    lists = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    changes = {key: each[-3:-1] for key, each in lists.items() if isinstance(each, tuple) and len(each) == stages > 2}
    try:
        config = apply(config, changes)
    except ConfigError:
        changes = {}
    single = {"depths": (1,) * len(config.depths)} if isinstance(config, StagedConfig) else {"depth": 1}
    changes |= {"image_size": image_size(config, (3, 2))}
    return changes | single if _kinds_of_blocks(name, changes | single) == _kinds_of_blocks(name, changes) else changes


def _kinds_of_blocks(name: str, changes: dict[str, Any]) -> set[str]:
    """Every block told by its layers, their sizes and their flags: those that are alike are one."""
    blocks = tiny(name, **changes).blocks
    return {str([(type(layer), _settings(layer)) for layer in block.modules()]) for block in blocks}


def _settings(layer: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(layer).items() if isinstance(value, int | str)}


def option_sets() -> dict[str, BackboneConfig]:
    """One preset for each set of options; those that differ in size or in fresh weights alone are the same here."""
    first: dict[tuple[str, str], str] = {}
    for name in presets():
        options = to_dict(shrunk(name)) | {"init": None}
        first.setdefault((resolve(name)[0].name, json.dumps(options)), name)
    return {name: shrunk(name) for name in first.values()}


def one_of_each_family() -> list[str]:
    """The first preset of every family."""
    return [next(iter(family.presets)) for family in FAMILIES.values()]


def one_of_each_design() -> list[str]:
    """One preset of every family, and those designs that share a family with another."""
    return [*one_of_each_family(), "convformer_s18", "caformer_s18", "vit_small_r26_s32"]


def tiny(name: str = "vit_tiny_patch16", **changes: Any) -> Backbone:
    """A shrunk model with random weights in evaluation mode; keywords change its config."""
    family, _ = resolve(name)
    return randomise(build(family, apply(shrunk(name), changes))).eval()


def pictures(model: Backbone, batch: int = 2, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random images B C H W of the size that the model takes."""
    return torch.randn(batch, model.config.channels, *model.config.image_size, dtype=dtype)
