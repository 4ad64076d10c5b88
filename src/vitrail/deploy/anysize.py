"""A model that works at the size its pictures come in, inside an artefact: `vitrail export --any-size`.

Pictures are brought to the nearest whole steps of the model (its patches, or the stride of its last level) instead of
to one size. Positions are resampled in the graph, as `dynamic_size=True` does it for the eager model.
"""

import copy
import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from vitrail.config import apply
from vitrail.deploy.servable import LEAST_STEPS, Servable, stretch
from vitrail.errors import InputError
from vitrail.layers.attention.biased import OffsetBias
from vitrail.layers.attention.window import WindowAttention
from vitrail.layers.position import Gridded
from vitrail.models.backbone import Backbone, BackboneConfig

# What keeps a graph from holding a model at every size; why it does, where torch names an expression of its own.
_TIED: dict[type[nn.Module], str] = {
    WindowAttention: "its windows are padded, shifted and masked in other ways at every size",
    OffsetBias: "its attention has a bias for every pair of places, whose number must be known",
}


class Elsewhere(tuple[int, int]):
    """A size that equals none, so that layers which ask whether one is their own resample always.

    A graph for all sizes cannot ask; to resample to the same size changes nothing.
    """

    __hash__ = tuple.__hash__

    def __eq__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return True


def at_any_size(module: Servable, step: int) -> Servable:
    """A copy that works at the size of its pictures, in whole steps; Unsupported says why a model cannot."""
    model, pixels = copy.deepcopy(module.model), copy.deepcopy(module.pixels)
    model.config = apply(model.config, {"dynamic_size": True})
    pixels.step = step
    return Servable(model, pixels, multi_label=module.multi_label).eval()


def for_graph(module: Servable) -> Servable:
    """The same model with layers that never ask whether a size is their own."""
    if module.pixels.step is None:
        return module
    model = copy.deepcopy(module.model)
    for layer in model.modules():
        if isinstance(layer, Gridded):
            layer.grid = Elsewhere(layer.grid)
    model.config = replace(model.config, image_size=Elsewhere(model.config.image_size))
    return Servable(model, module.pixels, multi_label=module.multi_label).eval()


def by_products(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The graph with positions resampled by products of matrices, as runtimes do not agree on antialiased bicubic."""
    resampling = torch.ops.aten._upsample_bicubic2d_aa.vec
    if all(node.target != resampling for node in program.graph.nodes):
        return program
    return program.run_decompositions({resampling: _resampled})


def _resampled(maps: Tensor, size: list[int], align_corners: bool, scales: list[float] | None) -> Tensor:
    """B c H W -> B c *size, as `interpolate` does it for a size, without aligned corners."""
    down, across = (stretch(side, target) for side, target in zip(maps.shape[2:], size, strict=True))
    return down @ (maps @ across.mT)


def steps(config: BackboneConfig) -> Iterator[int]:
    """Steps in pixels that could do, finest first: from the stride of the last level on, of which its size is made."""
    (height, width), grid = config.image_size, config.grid(config.image_size)
    least = max(height // grid[0], width // grid[1])
    common = math.gcd(height, width)
    for step in range(max(least, 1), common + 1):
        whole = common % step == 0 and min(height, width) >= LEAST_STEPS * step
        if whole and all(_fits(config, (rows * step, columns * step)) for rows in (2, 3, 5) for columns in (2, 3, 5)):
            yield step


def _fits(config: BackboneConfig, size: tuple[int, int]) -> bool:
    try:
        config.grids(size)
    except InputError:
        return False
    return True


def why_tied(model: Backbone) -> str | None:
    """What of a model depends on the size of images in a way that no graph holds, in words; None where unknown."""
    return next((why for kind, why in _TIED.items() for layer in model.modules() if isinstance(layer, kind)), None)
