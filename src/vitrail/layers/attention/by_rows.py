"""Softmax attention with a bias for every pair, a few rows of the map at a time: never a matrix of all pairs."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vitrail.layers.patch import Grid

# The first row of queries and the one after the last -> what is added to their logits, A wR K or B A wR K: queries go
# column by column.
RowBias = Callable[[int, int], Tensor]

PAIRS = 1 << 21  # of queries and keys at a time, in each head: large enough for the kernel, small beside all pairs


def attend_by_rows(
    q: Tensor, k: Tensor, v: Tensor, bias: RowBias, grid: Grid, *, scale: float, dropout: float = 0.0
) -> Tensor:
    """softmax(scale q k + bias) v for the queries of a grid: B A P+N d, B A K d, B A K v -> B A P+N v.

    The P queries before those of the grid have no bias. Where there are many pairs, each step is done again in the
    backward pass, so that training never holds them all either.
    """
    rows, columns = grid
    width, num_prefix = v.shape[-1], q.shape[2] - rows * columns
    step = max(1, PAIRS // (columns * k.shape[2]))
    if step < rows and q.shape[-1] != width:  # the CPU's fused kernel wants all equally wide; zeros change nothing
        wide = max(q.shape[-1], width)
        q, k, v = (F.pad(part, (0, wide - part.shape[-1])) for part in (q, k, v))

    def attend(asking: Tensor, first: int, last: int) -> Tensor:
        """Some rows: B A R w d -> B A Rw v."""
        mask = bias(first, last).to(asking.dtype)
        mask = mask[None] if mask.ndim == 3 else mask  # with three axes, the fused kernel is left
        asking = asking.transpose(2, 3).flatten(2, 3)  # B A wR d
        mixed = F.scaled_dot_product_attention(asking, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)
        return mixed.unflatten(2, (columns, -1)).transpose(2, 3).flatten(2, 3)

    learning = torch.is_grad_enabled() and k.requires_grad and not torch.compiler.is_exporting()
    placed, mixed = q[:, :, num_prefix:].unflatten(2, grid), []
    if num_prefix:
        mixed.append(F.scaled_dot_product_attention(q[:, :, :num_prefix], k, v, dropout_p=dropout, scale=scale))
    for first in range(0, rows, step):
        last = min(first + step, rows)
        some = (placed[:, :, first:last], first, last)
        mixed.append(checkpoint(attend, *some, use_reentrant=False) if learning and step < rows else attend(*some))
    return torch.cat(mixed, dim=2)[..., :width]
