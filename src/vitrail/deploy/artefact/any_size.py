"""An exported model that works at the size of its images: `vitrail export --any-size`.

Images are resized to the nearest multiple of the model's step (its patch size, or the stride of its last level) instead
of to one size. Positions are resampled in the graph, as `dynamic_size=True` does it for the eager model.
"""

import copy
import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from vitrail.config import apply
from vitrail.deploy.artefact.pixels import LEAST_STEPS, stretch
from vitrail.deploy.artefact.servable import Servable
from vitrail.errors import InputError
from vitrail.layers.attention.biased import OffsetBias
from vitrail.layers.attention.window import WindowAttention
from vitrail.layers.position import Gridded
from vitrail.models.backbone import Backbone, BackboneConfig

# Layers that have no graph for all sizes, and why; torch's own errors name an expression of the graph.
_FIXED: dict[type[nn.Module], str] = {
    WindowAttention: "its windows are padded, shifted and masked differently at every size",
    OffsetBias: "its attention has a bias for every pair of positions, whose number must be known",
}


class UnequalSize(tuple[int, int]):
    """A size that equals no other, so that layers which compare sizes always resample.

    A graph for all sizes cannot compare; resampling to the same size changes nothing.
    """

    __hash__ = tuple.__hash__

    def __eq__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return True


def at_any_size(module: Servable, step: int) -> Servable:
    """A copy that works at the size of its images, in multiples of the step."""
    task, pixels = copy.deepcopy(module.task), copy.deepcopy(module.pixels)
    task.backbone.config = apply(task.backbone.config, {"dynamic_size": True})
    pixels.step = step
    return Servable(task, pixels).eval()


def for_graph(module: Servable) -> Servable:
    """The same model with layers that never compare sizes."""
    if module.pixels.step is None:
        return module
    task = copy.deepcopy(module.task)
    model = task.backbone
    for layer in model.modules():
        if isinstance(layer, Gridded):
            layer.grid = UnequalSize(layer.grid)
    model.config = replace(model.config, image_size=UnequalSize(model.config.image_size))
    return Servable(task, module.pixels).eval()


def with_matmuls(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The graph with positions resampled by matrix products: runtimes do not agree on antialiased bicubic."""
    resampling = torch.ops.aten._upsample_bicubic2d_aa.vec
    if all(node.target != resampling for node in program.graph.nodes):
        return program
    return program.run_decompositions({resampling: _resampled})


def _resampled(maps: Tensor, size: list[int], align_corners: bool, scales: list[float] | None) -> Tensor:
    """B c H W -> B c *size, as `interpolate` does it for a size, without aligned corners."""
    down, across = (stretch(side, target) for side, target in zip(maps.shape[2:], size, strict=True))
    return down @ (maps @ across.mT)


def steps(config: BackboneConfig) -> Iterator[int]:
    """Possible steps in pixels, the finest first: divisors of the image size, from the stride of the last level on."""
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


def why_fixed(model: Backbone) -> str | None:
    """What ties a model to one image size, in words; None where unknown."""
    return next((why for kind, why in _FIXED.items() for layer in model.modules() if isinstance(layer, kind)), None)
