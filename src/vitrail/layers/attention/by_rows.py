"""Softmax attention with a bias for every pair, a few rows of the map at a time: never a matrix of all pairs."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vitrail.layers.patch import Grid
from vitrail.layers.strips import Strips, backwards, windows

# The first row of queries and the one after the last -> what is added to their logits, A wR K or B A wR K: queries go
# column by column.
RowBias = Callable[[int, int], Tensor]

PAIRS = 1 << 21  # of queries and keys at a time, in each head: large enough for the kernel, small beside all pairs
FEW = 1 << 18  # pairs in each head that are all written out at once
TALL = 28  # from so many rows on, a column of queries is enough for the kernel


def attend_by_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: RowBias,
    grid: Grid,
    *,
    scale: float,
    dropout: float = 0.0,
    asked: Tensor | None = None,
) -> Tensor:
    """softmax(scale q k + bias) v for the queries of a grid: B A P+N d, B A K d, B A K v -> B A P+N v.

    The P queries before those of the grid add `asked`, A P K, or nothing. Where there are many pairs, each step is done
    again in the backward pass, so that training never holds them all either.
    """
    rows, columns = grid
    width, num_prefix = v.shape[-1], q.shape[2] - rows * columns
    step = max(1, PAIRS // (columns * k.shape[2]))
    learning = _learning(k)
    if _fuses(k, dropout):
        q, k, v = _equally_wide(q, k, v)

    def attend(asking: Tensor, first: int, last: int) -> Tensor:
        """Some rows: B A R w d -> B A Rw v."""
        mask = bias(first, last).to(asking.dtype)
        mask = mask[None] if mask.ndim == 3 else mask  # with three axes, the fused kernel is left
        asking = asking.transpose(2, 3).flatten(2, 3)  # B A wR d
        mixed = F.scaled_dot_product_attention(asking, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)
        return mixed.unflatten(2, (columns, -1)).transpose(2, 3).flatten(2, 3)

    placed, mixed = q[:, :, num_prefix:].unflatten(2, grid), []
    if num_prefix:
        mask = None if asked is None else asked[None].to(q.dtype)
        mixed.append(F.scaled_dot_product_attention(q[:, :, :num_prefix], k, v, mask, dropout, scale=scale))
    for first in range(0, rows, step):
        last = min(first + step, rows)
        some = (placed[:, :, first:last], first, last)
        mixed.append(checkpoint(attend, *some, use_reentrant=False) if learning and step < rows else attend(*some))
    return torch.cat(mixed, dim=2)[..., :width]


def attend_by_strips(q: Tensor, k: Tensor, v: Tensor, bias: Strips, *, scale: float, dropout: float = 0.0) -> Tensor:
    """softmax(scale q k + bias) v with a bias by offsets: B A P+N' d, B A P+N d, B A P+N v -> B A P+N' v.

    Where nothing is learned, the CPU's fused kernel reads the bias of a tall map where it lies, in the strips.
    """
    fuses, width = _fuses(k, dropout), v.shape[-1]
    if fuses:
        q, k, v = _equally_wide(q, k, v)
    if fuses and bias.queries[0] >= TALL:
        return _attend_in_place(q, k, v, bias, scale=scale)[..., :width]
    if q.shape[2] * k.shape[2] <= FEW:
        mask = bias.whole()[None].to(q.dtype)  # with three axes, the fused kernel is left
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, scale=scale)[..., :width]
    k, v, asked = (backwards(part, bias.prefix.shape[1]) for part in (k, v, bias.asked.mT))
    return attend_by_rows(q, k, v, bias.rows, bias.queries, scale=scale, dropout=dropout, asked=asked.mT)[..., :width]


def _attend_in_place(q: Tensor, k: Tensor, v: Tensor, bias: Strips, *, scale: float) -> Tensor:
    """The same, without a copy of the bias: the queries of a column are a batch of their own, with its strip.

    Windows overlap, so that a prefix key finds room only at the end of every row of keys, each time with its share.
    """
    (rows, _), columns, num_prefix = bias.keys, bias.queries[1], bias.prefix.shape[1]
    shares = (bias.prefix - math.log(rows))[:, None, None].expand(*bias.strips.shape[:3], -1)  # A w' 2h-1 P
    strips = torch.cat([bias.strips, shares], dim=3)
    # The kernel takes masks of float32 with any queries: in bfloat16 a share would be off by a hundredth.
    masks = windows(strips.to(torch.promote_types(q.dtype, torch.float32)), bias.stride)  # A w' h' h(w+P)
    keys, values = (_in_every_row(part, bias.keys) for part in (k, v))  # B A h(w+P) d
    placed = q[:, :, num_prefix:].unflatten(2, bias.queries).transpose(2, 3)  # B A w' h' d
    mixed = [
        F.scaled_dot_product_attention(
            placed[:, head],
            keys[:, head, None].expand(-1, columns, -1, -1),
            values[:, head, None].expand(-1, columns, -1, -1),
            mask,
            scale=scale,
        )
        for head, mask in enumerate(masks[:, None])
    ]
    found = torch.stack(mixed, dim=1).transpose(2, 3).flatten(2, 3)  # B A w' h' d -> B A N' d
    if num_prefix == 0:
        return found
    asked = bias.asked[None].to(q.dtype)
    return torch.cat([F.scaled_dot_product_attention(q[:, :, :num_prefix], k, v, asked, scale=scale), found], dim=2)


def _in_every_row(tokens: Tensor, grid: Grid) -> Tensor:
    """Patches backwards, the prefix at the end of each row: B A P+N d -> B A h(w+P) d."""
    rows, columns = grid
    prefix, patches = tokens.split([tokens.shape[2] - rows * columns, rows * columns], dim=2)
    repeated = prefix[:, :, None].expand(-1, -1, rows, -1, -1)
    return torch.cat([patches.flip(2).unflatten(2, grid), repeated], dim=3).flatten(2, 3)


def _equally_wide(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as the CPU's fused kernel wants them; zeros change nothing."""
    more = v.shape[-1] - q.shape[-1]
    if more < 0:
        return q, k, F.pad(v, (0, -more))
    return (F.pad(q, (0, more)), F.pad(k, (0, more)), v) if more else (q, k, v)


def _learning(keys: Tensor) -> bool:
    return torch.is_grad_enabled() and keys.requires_grad and not torch.compiler.is_exporting()


def _fuses(keys: Tensor, dropout: float) -> bool:
    """Whether the CPU's fused kernel is at hand: it neither learns a bias nor drops weights, and no file has it."""
    return keys.device.type == "cpu" and not (dropout or _learning(keys) or torch.compiler.is_exporting())
