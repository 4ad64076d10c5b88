"""Which query answers for which true box: the assignment of least cost (DETR, arXiv:2005.12872)."""

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.data.targets.boxes_target import BOX, CLASS, BoxesTarget
from vitrail.errors import ConfigError
from vitrail.layers.boxes import generalised_iou, precise, to_centres, to_corners

_FOCAL_ALPHA, _FOCAL_GAMMA = 0.25, 2.0  # of the cost of a class, arXiv:2010.04159


class Truth(NamedTuple):
    """The true boxes of a batch, padded to M."""

    labels: Tensor  # B M int64; 0 for padding
    boxes: Tensor  # B M 4: centre and size, as shares of the image's sides
    valid: Tensor  # B M bool: whether there is a box to learn
    known: Tensor  # B bool: whether the image was annotated

    @classmethod
    def of(cls, values: Tensor, size: tuple[int, int]) -> "Truth":
        """From a batch's values B M 7, in pixels of images of this height and width."""
        height, width = size
        sides = values.new_tensor([width, height, width, height])
        valid = BoxesTarget.valid(values)
        labels = torch.where(valid, values[..., CLASS], 0.0).long()
        return cls(labels, to_centres(values[..., BOX] / sides), valid, BoxesTarget.known(values))

    def repeated(self, times: int) -> "Truth":
        """Each box `times` times: B M -> B M*times."""
        labels, boxes, valid = (one.repeat(1, times, *[1] * (one.ndim - 2)) for one in self[:3])
        return Truth(labels, boxes, valid, self.known)

    def without_class(self) -> "Truth":
        """The same boxes, all of class 0."""
        return self._replace(labels=torch.zeros_like(self.labels))


class Costs(NamedTuple):
    """The weights of the terms of a cost: class, L1 distance of boxes, generalised IoU."""

    label: float = 2.0
    box: float = 5.0
    giou: float = 2.0


@torch.no_grad()
def costs(logits: Tensor, boxes: Tensor, truth: Truth, weights: Costs, *, softmax: bool) -> Tensor:
    """The cost of each query for each true box: L B Q K, L B Q 4 -> L B Q M."""
    index = truth.labels[None, :, None].expand(len(logits), -1, logits.shape[2], -1)  # L B Q M
    if softmax:
        label = -precise(logits).softmax(dim=-1).gather(3, index)
    else:
        share = precise(logits).sigmoid()
        right = _FOCAL_ALPHA * (1 - share) ** _FOCAL_GAMMA * -(share + 1e-8).log()
        wrong = (1 - _FOCAL_ALPHA) * share**_FOCAL_GAMMA * -(1 - share + 1e-8).log()
        label = (right - wrong).gather(3, index)
    distance = torch.cdist(boxes, truth.boxes[None].expand(len(boxes), -1, -1, -1).to(boxes), p=1)  # L B Q M
    corners, true = to_corners(boxes)[:, :, :, None], to_corners(truth.boxes)[None, :, None].to(boxes)
    overlap = generalised_iou(corners, true)  # L B Q M
    return weights.label * label + weights.box * distance - weights.giou * overlap


def assign(cost: Tensor, valid: Tensor) -> Tensor:
    """The true box of each query, -1 for none: costs L B Q M and which boxes are real, B M -> L B Q int64.

    Every real box has one query, and all of them together cost least. Where there are more boxes than queries, those
    that would cost most have none.
    """
    return assign_all([cost], [valid])[0]


def assign_all(costs: Sequence[Tensor], valid: Sequence[Tensor]) -> list[Tensor]:
    """`assign` for several sets of queries: a GPU waits for the CPU once, not once for each."""
    found: list[Tensor] = torch.ops.vitrail.match_boxes(list(costs), list(valid))
    return found


# An operator of its own, so that torch.compile keeps the loss in one graph: the matching itself runs on the CPU.
torch.library.define("vitrail::match_boxes", "(Tensor[] costs, Tensor[] valid) -> Tensor[]")


@torch.library.impl("vitrail::match_boxes", "CompositeExplicitAutograd")
def _match_boxes(costs: Sequence[Tensor], valid: Sequence[Tensor]) -> list[Tensor]:
    solve = _solver()
    # Infinite costs would make the problem unsolvable; such a query is taken only where there is no other.
    flat = torch.cat([cost.float().flatten() for cost in costs]).nan_to_num(nan=1e6, posinf=1e6, neginf=-1e6)
    real = torch.cat([one.flatten() for one in valid])
    matrices, rows = _split(flat.cpu(), costs), _split(real.cpu(), valid)
    found = [_solved(matrix, row, solve) for matrix, row in zip(matrices, rows, strict=True)]
    flat_found = torch.cat([one.flatten() for one in found]).to(costs[0].device)
    return [one.clone() for one in _split(flat_found, found)]


def _split(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    return [part.view_as(one) for part, one in zip(flat.split([one.numel() for one in like]), like, strict=True)]


def _solved(cost: Tensor, valid: Tensor, solve: Any) -> Tensor:
    """The assignment of one set of queries, on the CPU: L B Q M, B M -> L B Q."""
    real = [row.nonzero()[0] for row in valid.numpy()]
    found = torch.full(cost.shape[:3], -1, dtype=torch.int64)
    for layer, images in enumerate(cost.numpy()):
        for image, square in enumerate(images):
            if len(real[image]):
                queries, boxes = solve(square[:, real[image]])
                found[layer, image, torch.from_numpy(queries)] = torch.from_numpy(real[image][boxes])
    return found


@torch.library.register_fake("vitrail::match_boxes")  # type: ignore[untyped-decorator]
def _match_boxes_shape(costs: Sequence[Tensor], valid: Sequence[Tensor]) -> list[Tensor]:
    return [cost.new_empty(cost.shape[:3], dtype=torch.int64) for cost in costs]


def _solver() -> Any:
    try:
        return importlib.import_module("scipy.optimize").linear_sum_assignment
    except ImportError as error:
        raise ConfigError("training a detector needs scipy: pip install scipy") from error
