"""`describe`: a model's parameters, MACs and training memory by layer, as a report."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from torch import nn

from vitrail.config import Choice
from vitrail.errors import ConfigError
from vitrail.models.backbone import Backbone, BackboneConfig
from vitrail.models.registry import name_of
from vitrail.profiling.count import Node, blank_images, count, float_type, named_or_given
from vitrail.report import Facts, Report, Table, Text, Unit, Value, show

_NOTES = (
    "All numbers are for the whole batch. MACs are the multiply-accumulates of matrix products and convolutions in "
    "one forward pass; one MAC is two FLOPs. Activations are the memory that a training step saves for the backward "
    "pass in addition to the weights; fused attention saves no N x N matrix, and a dropout mask takes one byte per "
    "element. Memory that layers share counts once, for the first layer that saved it."
)


def describe(
    model: str | Backbone, *, image_size: int | tuple[int, int] | None = None, batch: int = 1, depth: int = 2
) -> Report:
    """Parameters, MACs and activation memory by layer, down to `depth` levels of modules.

    It runs on shapes only: fast, without memory for the weights of a name; a model is not changed.
    """
    for name, value in (("batch", batch), ("depth", depth)):
        if value < 1:
            raise ConfigError(f"{name} is {value}; it must be 1 or more")
    built = named_or_given(model, image_size)
    images = blank_images(built, image_size, batch)
    tree = count(built, images)
    parameters, macs, kept = tree.total
    trainable = sum(p.numel() for p in built.parameters() if p.requires_grad)
    facts: dict[str, Value] = {
        "class": type(built).__name__,
        "images": " x ".join(map(str, images.shape)),
        "dtype": str(float_type(built)).removeprefix("torch."),
        "checkpointing": built.checkpointing,
        "parameters": parameters,
        **({"trainable parameters": trainable} if trainable != parameters else {}),
        "weights": sum(p.numel() * p.element_size() for p in built.parameters()),
        "MACs": macs,
        "FLOPs": 2 * macs,
        "activations": kept,
    }
    totals = Facts("Totals", facts, {"weights": "bytes", "MACs": "si", "FLOPs": "si", "activations": "bytes"})
    sections = (totals, _layers(tree, depth), Facts("Config", summary(built.config)), Text("Notes", _NOTES))
    return Report(model if isinstance(model, str) else _title(built.config), sections)


def _title(config: BackboneConfig) -> str:
    """The title for a model: its family, and its preset name if it has one."""
    family, name = type(config).__name__.removesuffix("Config"), name_of(config)
    return family if name is None else f"{family}: {name}"


def summary(config: BackboneConfig) -> dict[str, Value]:
    """The options of a config that are set, as users would write them, without image size and channels."""
    shown = {
        field.name: _written(getattr(config, field.name))
        for field in dataclasses.fields(config)
        if field.name not in ("image_size", "channels")
    }
    return {name: value for name, value in shown.items() if value not in (None, False, 0, "")}


def _written(value: Any) -> Value:
    if isinstance(value, Choice):
        changed = [
            f"{field.name} {show(_written(getattr(value, field.name)))}"
            for field in dataclasses.fields(value)  # type: ignore[arg-type]
            if getattr(value, field.name) != field.default
        ]
        return ", ".join([value.kind, *changed])
    if isinstance(value, tuple):
        numbers = all(isinstance(item, int) for item in value)
        return (" x " if numbers else " + ").join(str(_written(item)) for item in value)
    return value if isinstance(value, bool | int | float | None) else str(value)


def _layers(tree: Node, depth: int) -> Table:
    whole = tree.total
    rows: list[dict[str, Value]] = []
    for path, module, counts in [*_rows(tree, "", 1, depth), ("total", "", whole)]:
        parameters, macs, kept = counts
        rows.append(
            {
                "layer": path,
                "module": module,
                "parameters": parameters,
                "MACs": macs,
                "of MACs": macs / whole[1] if macs else None,
                "activations": kept,
            }
        )
    units: dict[str, Unit] = {"layer": "path", "module": "", "parameters": "", "MACs": "si", "of MACs": "share"}
    return Table("Layers", units | {"activations": "bytes"}, rows)


def _rows(node: Node, path: str, times: int, depth: int) -> Iterator[tuple[str, str, tuple[int, int, int]]]:
    """Path, module and counts of the layers below a node, counted `times`; equal consecutive layers share a row."""
    for run in _runs(node):
        first, many = run[0], times * len(run)
        name = first.path[len(node.path) :].lstrip(".")
        if len(run) > 1:
            name += "-" + run[-1].path.rsplit(".", maxsplit=1)[-1]
        below = f"{path}.{name}".lstrip(".")
        parameters, macs, kept = first.total
        if parameters or macs or kept:
            kind = type(first.module).__name__
            yield below, f"{len(run)} x {kind}" if len(run) > 1 else kind, (parameters * many, macs * many, kept * many)
            inner = list(_rows(first, below, many, depth - 1)) if depth > 1 else []
            if len(inner) > 1:  # a single inner layer would only repeat the row
                yield from inner
    if node.children and (node.parameters or node.macs or node.kept):
        counts = (node.parameters * times, node.macs * times, node.kept * times)
        yield f"{path}.(itself)".lstrip("."), "", counts


def _runs(node: Node) -> list[list[Node]]:
    """The layers below a node, including those in lists, grouped by equal consecutive ones."""
    runs: list[list[Node]] = []
    for child in node.children:
        if isinstance(child.module, nn.ModuleList | nn.Sequential):
            runs += _runs(child)
        elif runs and _alike(runs[-1][0], child) and _numbered(runs[-1][-1], child):
            runs[-1].append(child)
        else:
            runs.append([child])
    return runs


def _numbered(before: Node, after: Node) -> bool:
    """Whether two layers are consecutive in a list."""
    (home, first), (other, second) = ((f".{node.path}").rsplit(".", maxsplit=1) for node in (before, after))
    return home == other and first.isdecimal() and second.isdecimal()


def _alike(one: Node, other: Node) -> bool:
    return (
        type(one.module) is type(other.module)
        and (one.parameters, one.macs, one.kept) == (other.parameters, other.macs, other.kept)
        and len(one.children) == len(other.children)
        and all(map(_alike, one.children, other.children))
    )
