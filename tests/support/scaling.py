"""What an attention costs as the grid grows, counted and not timed: multiply-accumulates and the largest tensor."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.layers.attention import AttentionConfig, Site
from vitrail.profiling.dry_run import FusedKernels, Shapes


class Growth(NamedTuple):
    """By what factor the costs grow when a grid of 32 x 32 patches becomes one of 64 x 64, four times as many."""

    macs: float
    largest: float


class _Largest(Shapes):
    """Remembers the largest tensor that an operator gives."""

    def __init__(self, on_macs: Any) -> None:
        super().__init__(on_macs)
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor):
                # What a view repeats by a stride of 0 takes no memory.
                steps = zip(tensor.shape, tensor.stride(), strict=True)
                self.largest = max(self.largest, torch.Size(size for size, step in steps if step).numel())
        return result


def cost(config: AttentionConfig, side: int) -> tuple[int, int]:
    """MACs and the elements of the largest tensor for a grid of side x side patches and a class token."""
    layer = config.build(Site(dim=64, num_heads=2, grid=(side, side), num_prefix=1)).eval()
    macs: list[int] = []
    with torch.no_grad(), _Largest(macs.append) as shapes, FusedKernels(macs.append):
        layer(torch.empty(1, 1 + side * side, 64), (side, side))
    return sum(macs), shapes.largest


def growth(config: AttentionConfig) -> Growth:
    """How the costs of a mechanism grow with four times the patches: by 4 where they are linear, by 16 where square."""
    small, large = cost(config, 32), cost(config, 64)
    return Growth(large[0] / small[0], large[1] / small[1])
