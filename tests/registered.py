"""Everything that is registered, small enough for a test: what is added to the library arrives here by itself."""

import dataclasses
import json
import typing
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from vitrail.config import Choice, apply, to_dict
from vitrail.errors import InputError
from vitrail.models.backbone import Backbone, BackboneConfig
from vitrail.models.registry import FAMILIES, build, presets, resolve
from vitrail.models.staged import StagedConfig

M = TypeVar("M", bound=nn.Module)

SMALL = {"dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5, "layer_scale": 0.5}


# Numbers that change what a layer does; flags and words are varied without being listed.
NUMBERS: dict[str, dict[str, Any]] = {
    "linear": {"size": (12, 12), "stride": (8, 8), "padding": (2, 2)},
    "conv": {"halvings": 2},
    "softmax": {"head_dim": 12, "temperature": 0.5},
    "rope": {"reference": (7, 5), "theta": 100.0},
}


def variants(base: type[Choice]) -> dict[str, Any]:
    """Every kind as it stands, and once more for each other value of its flags and its words."""
    found = {}
    for kind, cls in base.kinds.items():
        default, hints = cls(), typing.get_type_hints(cls)
        found[kind] = default
        if kind in NUMBERS:
            found[f"{kind}-numbers"] = dataclasses.replace(default, **NUMBERS[kind])
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


def shrunk(name: str) -> BackboneConfig:
    """A preset's config with two blocks and a width of 32, patches of 8 pixels, and all its other options.

    A model of stages has one block in each and two in the last but one.
    """
    _, config = resolve(name)
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    changes: dict[str, Any] = {key: value for key, value in SMALL.items() if fields.get(key) is not None}
    if isinstance(config, StagedConfig):
        stages = len(config.depths)
        changes |= {"depths": (1,) * (stages - 2) + (2, 1), "dims": (16, 32, 48, 64)[:stages]}
        if "num_heads" in fields:
            changes["num_heads"] = (1, 2, 2, 4)[:stages]
    if hasattr(fields.get("patch"), "size"):
        changes["patch"] = {"size": 8}
    if getattr(fields.get("mlp"), "hidden", None) is not None:
        changes["mlp"] = {"hidden": 48}
    config = apply(config, changes)
    return apply(config, {"image_size": image_size(config, (3, 2))})


def image_size(config: BackboneConfig, grid: tuple[int, int]) -> tuple[int, int]:
    """An image size of so many units, where the unit is the smallest power of two that the patches allow."""
    for unit in (8, 16, 32, 64):
        size = (grid[0] * unit, grid[1] * unit)
        try:
            config.grid(size)
        except InputError:
            continue
        return size
    raise AssertionError(f"no image size found for {config}")


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


def tiny(name: str = "vit_tiny_patch16", **changes: Any) -> Backbone:
    """A shrunk model with random weights in evaluation mode; keywords change its config."""
    family, _ = resolve(name)
    return randomise(build(family, apply(shrunk(name), changes))).eval()


def pictures(model: Backbone, batch: int = 2, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random images B C H W of the size that the model takes."""
    return torch.randn(batch, model.config.channels, *model.config.image_size, dtype=dtype)
