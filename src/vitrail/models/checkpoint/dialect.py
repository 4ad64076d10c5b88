"""Renaming another project's tensors to ours and back: tables of rules, applied strictly in both directions."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from vitrail.errors import CheckpointError, listed
from vitrail.models.backbone import Backbone, BackboneConfig
from vitrail.models.checkpoint.files import Weights

_DIGITS = 10  # of the number of a block


class Rule(NamedTuple):
    """One of our tensors, and the tensor or tensors in which another project stores it.

    Several parts are joined along the first axis, or stacked into a new one. `lead` counts the axes of length 1 that
    stand before theirs and not before ours: (1, N, D) is N D with a lead of 1; `trail` those that stand after: the
    weights D C 1 1 of a convolution are a linear map D C with a trail of 2. `{i}` in both names runs over blocks.
    """

    ours: str
    theirs: tuple[str, ...]
    lead: int = 0
    stack: bool = False
    trail: int = 0


def rule(ours: str, *theirs: str, lead: int = 0, stack: bool = False, trail: int = 0) -> Rule:
    """A rule; without their name, the tensor has the same name in both projects."""
    return Rule(ours, theirs or (ours,), lead, stack, trail)


def linear(ours: str, *theirs: str) -> list[Rule]:
    """The two rules of a layer with weight and bias."""
    return [rule(f"{ours}.{part}", *(f"{name}.{part}" for name in theirs)) for part in ("weight", "bias")]


def batch_norm(ours: str, theirs: str) -> list[Rule]:
    """The five rules of a batch norm."""
    parts = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    return [rule(f"{ours}.{part}", f"{theirs}.{part}") for part in parts]


def conv_norm(ours: str, conv: str, norm: str) -> list[Rule]:
    """The rules of a convolution without a bias and the batch norm after it."""
    return [rule(f"{ours}.conv.weight", f"{conv}.weight"), *batch_norm(f"{ours}.norm", norm)]


@dataclass(frozen=True, kw_only=True)
class Found:
    """The model that a dialect found in a checkpoint, and how its tensors are named."""

    family: str
    config: BackboneConfig
    tensors: Mapping[str, Tensor]
    rules: Sequence[Rule]
    ignored: str = r"(?!)"  # a pattern of tensors that are not needed; by default none
    labels: Sequence[str] | None = None


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """A model in another project's format: tensors by its names, and its config.json."""

    tensors: Mapping[str, Tensor]
    config: Mapping[str, Any] = field(default_factory=dict)


class Dialect(Protocol):
    """One project's way of naming tensors and writing configs."""

    @property
    def name(self) -> str:
        """Its name in messages."""
        ...

    def recognises(self, weights: Weights) -> bool:
        """Whether the names of the tensors, or config.json, belong to this project."""
        ...

    def read(self, weights: Weights, hint: BackboneConfig | None) -> Found:
        """The model of these weights; `hint` is the config that the caller passed as `model`."""
        ...

    def write(self, model: Backbone) -> Foreign:
        """The model in this project's format, or Unsupported if the project has no such model."""
        ...


def to_ours(found: Found, model: Backbone) -> dict[str, Tensor]:
    """A complete state dict for the model; a missing, surplus or misshaped tensor is an error that lists it."""
    wanted = model.state_dict()
    left = {name for name in found.tensors if not re.fullmatch(found.ignored, name)}
    state: dict[str, Tensor] = {}
    missing, misshaped = [], []
    for each in expand(found.rules, depth_of(wanted)):
        if each.ours not in wanted:
            continue
        left -= set(each.theirs)
        if absent := [name for name in each.theirs if name not in found.tensors]:
            missing += absent
            continue
        try:
            tensor = _join(each, [found.tensors[name] for name in each.theirs])
        except (RuntimeError, IndexError):
            tensor = found.tensors[each.theirs[0]]
        ours = wanted[each.ours]
        if tensor.shape != ours.shape or tensor.is_floating_point() != ours.is_floating_point():
            shapes = ", ".join(f"{name} {_seen(found.tensors[name])}" for name in each.theirs)
            misshaped.append(f"{shapes} for {each.ours} {tuple(ours.shape)}")
            continue
        state[each.ours] = tensor
    ruled = {each.ours for each in expand(found.rules, depth_of(wanted))}
    missing += [f"(any name for) {name}" for name in wanted if name not in ruled]
    if missing or left or misshaped:
        raise CheckpointError(_complaint(missing=missing, surplus=sorted(left), misshaped=misshaped))
    return state


def to_theirs(model: Backbone, rules: Iterable[Rule]) -> dict[str, Tensor]:
    """The model's tensors by another project's names; every one must have a rule."""
    state = model.state_dict()
    tensors: dict[str, Tensor] = {}
    for each in expand(rules, depth_of(state)):
        if each.ours in state:
            tensors |= zip(each.theirs, _split(each, state.pop(each.ours)), strict=True)
    if state:
        raise CheckpointError(f"no rule names these tensors: {listed(state)}")
    return tensors


def expand(rules: Iterable[Rule], depth: int) -> list[Rule]:
    """Writes out `{i}` for every block."""
    out = []
    for each in rules:
        for i in range(depth) if "{i}" in each.ours else [0]:
            ours, theirs = each.ours.replace("{i}", str(i)), tuple(name.replace("{i}", str(i)) for name in each.theirs)
            out.append(each._replace(ours=ours, theirs=theirs))
    return out


def depth_of(names: Iterable[str], pattern: str = r"blocks\.(\d+)\.") -> int:
    """How many blocks there are in a list of tensor names; CheckpointError where they cannot all be there."""
    numbers = [match[1] for name in names if (match := re.match(pattern, name))]
    depth = max((int(digits) + 1 for digits in numbers if len(digits) < _DIGITS), default=0)
    if depth > len(numbers) or any(len(digits) >= _DIGITS for digits in numbers):
        raise CheckpointError(
            f"names of tensors count blocks up to {max(numbers, key=len)[:20]}, but most of these blocks are missing"
        )
    return depth


def _seen(tensor: Tensor) -> str:
    shape = str(tuple(tensor.shape))
    return shape if tensor.is_floating_point() else f"{shape} of {tensor.dtype}"


def _join(each: Rule, parts: list[Tensor]) -> Tensor:
    for _ in range(each.lead):
        parts = [part.squeeze(0) for part in parts]
    for _ in range(each.trail):
        parts = [part.squeeze(-1) for part in parts]
    if each.stack:
        return torch.stack(parts)
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _split(each: Rule, tensor: Tensor) -> list[Tensor]:
    if each.stack:
        parts = list(tensor.unbind(0))
    else:
        parts = list(tensor.chunk(len(each.theirs))) if len(each.theirs) > 1 else [tensor]  # a count has no axis
    return [part[(None,) * each.lead + (...,) + (None,) * each.trail] for part in parts]


def _complaint(*, missing: list[str], surplus: list[str], misshaped: list[str]) -> str:
    lines = ["the checkpoint does not fit the model:"]
    for word, names in (("missing", missing), ("surplus", surplus), ("misshaped", misshaped)):
        if names:
            shown = names if len(names) <= 20 else [*names[:20], f"... and {len(names) - 20} more"]
            lines.append(f"  {word} ({len(names)}): " + "; ".join(shown))
    return "\n".join(lines)
