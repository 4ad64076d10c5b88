"""Which query answers for which true box: the assignment of least cost (DETR, arXiv:2005.12872)."""

import importlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.data.targets.boxes_target import BOX, CLASS, BoxesTarget
from vitrail.errors import ConfigError
from vitrail.layers.boxes import generalised_iou, precise, to_centres, to_corners

Array = np.ndarray[Any, Any]
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
        sides = torch.tensor([width, height, width, height], dtype=values.dtype).to(values.device, non_blocking=True)
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
    known = [cost.float().nan_to_num(nan=1e6, posinf=1e6, neginf=-1e6) for cost in costs]
    rows = [_candidates(cost) for cost in known]
    fewer = [
        cost.take_along_dim(row[..., None], 2) if len(row) else cost for cost, row in zip(known, rows, strict=True)
    ]
    given = zip(_on_cpu(fewer), _on_cpu(rows), _on_cpu(valid), costs, strict=True)
    found = [_solved(cost, row, real, whole.shape[2], solve) for cost, row, real, whole in given]
    flat = torch.from_numpy(np.concatenate([one.ravel() for one in found])).to(costs[0].device)
    return [part.clone() for part in _split(flat, found)]


def _candidates(cost: Tensor) -> Tensor:
    """The queries that may be matched, some of them more than once, or an empty tensor for all: L B Q M -> L B R.

    With M boxes, only the M cheapest queries of each can be part of the best assignment. Of the tokens of all levels
    few remain; for the queries of a decoder this would not pay.
    """
    queries, boxes = cost.shape[2:]
    if 2 * boxes * boxes >= queries:
        return cost.new_empty(0, dtype=torch.int64)
    return cost.topk(boxes, dim=2, largest=False, sorted=False).indices.flatten(2)  # L B M M -> L B MM


def _on_cpu(tensors: Sequence[Tensor]) -> list[Array]:
    """One copy from the GPU for all of them."""
    return [part.numpy() for part in _split(torch.cat([one.flatten() for one in tensors]).cpu(), tensors)]


def _split(flat: Tensor, like: Sequence[Tensor | Array]) -> list[Tensor]:
    sizes = [math.prod(one.shape) for one in like]
    return [part.view(one.shape) for part, one in zip(flat.split(sizes), like, strict=True)]


def _solved(cost: Array, rows: Array, valid: Array, queries: int, solve: Any) -> Array:
    """The assignment of one set of queries: the costs L B R M of the queries `rows`, B M -> L B Q."""
    found = np.full((*cost.shape[:2], queries), -1)
    for image, real in enumerate(row.nonzero()[0] for row in valid):
        for layer in range(len(cost) if len(real) else 0):
            matrix = cost[layer, image][:, real]
            if rows.size:
                names, first = np.unique(rows[layer, image], return_index=True)
                chosen, boxes = solve(matrix[first])
                query = names[chosen]
            else:
                query, boxes = solve(matrix)
            found[layer, image, query] = real[boxes]
    return found


@torch.library.register_fake("vitrail::match_boxes")  # type: ignore[untyped-decorator]
def _match_boxes_shape(costs: Sequence[Tensor], valid: Sequence[Tensor]) -> list[Tensor]:
    return [cost.new_empty(cost.shape[:3], dtype=torch.int64) for cost in costs]


def _solver() -> Any:
    try:
        return importlib.import_module("scipy.optimize").linear_sum_assignment
    except ImportError as error:
        raise ConfigError("training a detector needs scipy: pip install scipy") from error
