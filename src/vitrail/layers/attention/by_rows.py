"""Softmax attention with a bias, a few rows of the map at a time, so that the matrix of all pairs is never stored."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vitrail.layers.patch import Grid
from vitrail.layers.strips import Strips, backwards, windows

# (first, last) -> the bias of the rows of queries first:last, A wR K or B A wR K, with queries column by column.
RowBias = Callable[[int, int], Tensor]

PAIRS = 1 << 21  # pairs of queries and keys per step and head: large enough for the kernel, much fewer than all pairs
FEW = 1 << 18  # up to this number of pairs per head, all are computed at once
TALL = 28  # from this number of rows on, one column of queries is enough work for the kernel


def attend_by_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: RowBias,
    grid: Grid,
    *,
    scale: float,
    dropout: float = 0.0,
    prefix_queries: Tensor | None = None,
) -> Tensor:
    """softmax(scale q k + bias) v for the queries of a grid: B A P+N d, B A K d, B A K v -> B A P+N v.

    `prefix_queries`, A P K, is the bias of the P queries before those of the grid. With many pairs, each step is
    recomputed in the backward pass, so that training does not store them either.
    """
    rows, columns = grid
    width, num_prefix = v.shape[-1], q.shape[2] - rows * columns
    step = max(1, PAIRS // (columns * k.shape[2]))
    learning = _learning(k)
    if _fuses(k, dropout):
        q, k, v = _equally_wide(q, k, v)

    def attend(queries: Tensor, first: int, last: int) -> Tensor:
        """Some rows: B A R w d -> B A Rw v."""
        mask = bias(first, last).to(queries.dtype)
        mask = mask[None] if mask.ndim == 3 else mask  # the fused kernel needs four axes
        queries = queries.transpose(2, 3).flatten(2, 3)  # B A wR d
        mixed = F.scaled_dot_product_attention(queries, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)
        return mixed.unflatten(2, (columns, -1)).transpose(2, 3).flatten(2, 3)

    placed, mixed = q[:, :, num_prefix:].unflatten(2, grid), []
    if num_prefix:
        mask = None if prefix_queries is None else prefix_queries[None].to(q.dtype)
        mixed.append(F.scaled_dot_product_attention(q[:, :, :num_prefix], k, v, mask, dropout, scale=scale))
    for first in range(0, rows, step):
        last = min(first + step, rows)
        some = (placed[:, :, first:last], first, last)
        mixed.append(checkpoint(attend, *some, use_reentrant=False) if learning and step < rows else attend(*some))
    return torch.cat(mixed, dim=2)[..., :width]


def attend_by_strips(q: Tensor, k: Tensor, v: Tensor, bias: Strips, *, scale: float, dropout: float = 0.0) -> Tensor:
    """softmax(scale q k + bias) v with a bias by offsets: B A P+N' d, B A P+N d, B A P+N v -> B A P+N' v.

    In inference, the CPU's fused kernel reads the bias of a tall map directly from the strips, without a copy.
    """
    fuses, width = _fuses(k, dropout), v.shape[-1]
    if fuses:
        q, k, v = _equally_wide(q, k, v)
    if fuses and bias.queries[0] >= TALL:
        return _attend_in_place(q, k, v, bias, scale=scale)[..., :width]
    if q.shape[2] * k.shape[2] <= FEW:
        mask = bias.whole()[None].to(q.dtype)  # the fused kernel needs four axes
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, scale=scale)[..., :width]
    k, v, mask = (backwards(part, bias.prefix.shape[1]) for part in (k, v, bias.prefix_queries.mT))
    mixed = attend_by_rows(q, k, v, bias.rows, bias.queries, scale=scale, dropout=dropout, prefix_queries=mask.mT)
    return mixed[..., :width]


def _attend_in_place(q: Tensor, k: Tensor, v: Tensor, bias: Strips, *, scale: float) -> Tensor:
    """The same, without a copy of the bias: each column of queries is a batch of its own, with its strip as the bias.

    The windows of a strip overlap, so prefix keys are repeated at the end of every row of keys, each with a share of
    the weight: log(rows) is subtracted from their bias.
    """
    (rows, _), columns, num_prefix = bias.keys, bias.queries[1], bias.prefix.shape[1]
    shares = (bias.prefix - math.log(rows))[:, None, None].expand(*bias.strips.shape[:3], -1)  # A w' 2h-1 P
    strips = torch.cat([bias.strips, shares], dim=3)
    # The kernel takes float32 masks with queries of any type; in bfloat16 the shares would be off by one percent.
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
    patches = torch.stack(mixed, dim=1).transpose(2, 3).flatten(2, 3)  # B A w' h' d -> B A N' d
    if num_prefix == 0:
        return patches
    mask = bias.prefix_queries[None].to(q.dtype)
    prefix = F.scaled_dot_product_attention(q[:, :, :num_prefix], k, v, mask, scale=scale)
    return torch.cat([prefix, patches], dim=2)


def _in_every_row(tokens: Tensor, grid: Grid) -> Tensor:
    """Patches in reverse order, with the prefix at the end of each row: B A P+N d -> B A h(w+P) d."""
    rows, columns = grid
    prefix, patches = tokens.split([tokens.shape[2] - rows * columns, rows * columns], dim=2)
    repeated = prefix[:, :, None].expand(-1, -1, rows, -1, -1)
    return torch.cat([patches.flip(2).unflatten(2, grid), repeated], dim=3).flatten(2, 3)


def _equally_wide(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values padded with zeros to the same width, as the CPU's fused kernel needs them."""
    more = v.shape[-1] - q.shape[-1]
    if more < 0:
        return q, k, F.pad(v, (0, -more))
    return (F.pad(q, (0, more)), F.pad(k, (0, more)), v) if more else (q, k, v)


def _learning(keys: Tensor) -> bool:
    return torch.is_grad_enabled() and keys.requires_grad and not torch.compiler.is_exporting()


def _fuses(keys: Tensor, dropout: float) -> bool:
    """Whether the CPU's fused kernel can be used: not in training, with dropout or in an exported graph."""
    return keys.device.type == "cpu" and not (dropout or _learning(keys) or torch.compiler.is_exporting())
