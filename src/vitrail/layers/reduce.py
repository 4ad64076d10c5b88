"""Token reduction: random patch dropout in training, pruning by importance, or merging of similar tokens.

The output of the model still has one vector for each patch, in the order of the grid. A merged token is copied to all
of its patches; a pruned patch keeps the value that it had when it was pruned; a patch that was dropped in training
gets the mean of the remaining ones, so that mean pooling is not affected.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import Choice, CountFromZero, Range
from vitrail.errors import ConfigError
from vitrail.layers.attention import SoftmaxAttention
from vitrail.layers.block import Block
from vitrail.layers.patch import Grid

Run = Callable[..., Any]  # calls a block with its inputs; a backbone's recomputes it in the backward pass


class ReduceConfig(Choice):
    """How a plain ViT reduces its tokens: in each block, between attention and MLP."""

    needs_class_token: ClassVar[bool] = False

    @abstractmethod
    def build(self, *, depth: int, num_prefix: int, patch_drop: float) -> "Reduction":
        """The module that runs the blocks."""

    @abstractmethod
    def counts(self, patches: int, *, depth: int, num_prefix: int) -> list[tuple[int, int]]:
        """The number of input tokens of attention and of the MLP, for each block, including the prefix."""


@dataclass(frozen=True, kw_only=True)
class MergeConfig(ReduceConfig, kind="merge"):
    """Merges the `amount` most similar pairs of tokens in each block (ToMe, arXiv:2210.09461)."""

    amount: CountFromZero = 8

    def build(self, *, depth: int, num_prefix: int, patch_drop: float) -> "Reduction":
        """The module that runs the blocks."""
        return Merging(self, num_prefix=num_prefix, patch_drop=patch_drop)

    def merged(self, tokens: int, num_prefix: int) -> int:
        """How many tokens a block removes: at most half of the patches, and never the prefix."""
        return min(self.amount, (tokens - num_prefix) // 2)

    def counts(self, patches: int, *, depth: int, num_prefix: int) -> list[tuple[int, int]]:
        """The number of input tokens of attention and of the MLP, for each block, including the prefix."""
        tokens, counts = num_prefix + patches, []
        for _ in range(depth):
            counts.append((tokens, tokens - self.merged(tokens, num_prefix)))
            tokens = counts[-1][1]
        return counts


@dataclass(frozen=True, kw_only=True)
class PruneConfig(ReduceConfig, kind="prune"):
    """Removes the patches with the least attention from the class token, in some blocks (EViT, arXiv:2202.07800).

    Each of the `blocks` keeps the fraction `keep`; the default blocks are at a quarter, half and three quarters of the
    depth. `fuse` adds one token for the removed ones: their sum, weighted by the attention of the class token.
    """

    needs_class_token = True
    keep: Annotated[float, Range(0.0, 1.0, open=True)] = 0.7
    blocks: tuple[CountFromZero, ...] | None = None
    fuse: bool = True

    def build(self, *, depth: int, num_prefix: int, patch_drop: float) -> "Reduction":
        """The module that runs the blocks."""
        return Pruning(self, depth=depth, num_prefix=num_prefix, patch_drop=patch_drop)

    def at(self, depth: int) -> tuple[int, ...]:
        """The indices of the blocks that prune, in a model of this depth."""
        if self.blocks is None:
            return tuple(sorted({depth * quarter // 4 for quarter in (1, 2, 3)})) if depth else ()
        if wrong := [block for block in self.blocks if block >= depth]:
            raise ConfigError(f"reduce.blocks: {wrong[0]} is not a block of the model; allowed: 0 to {depth - 1}")
        return self.blocks

    def kept(self, others: int) -> int:
        """How many of `others` tokens (without the prefix) a block keeps."""
        return math.ceil(self.keep * others)

    def counts(self, patches: int, *, depth: int, num_prefix: int) -> list[tuple[int, int]]:
        """The number of input tokens of attention and of the MLP, for each block, including the prefix."""
        others, counts = patches, []
        for block in range(depth):
            before, stay = others, self.kept(others)
            if block in self.at(depth) and stay < others:
                others = stay + self.fuse
            counts.append((num_prefix + before, num_prefix + others))
        return counts


class ReducibleBlock(Block):
    """A block whose MLP may have fewer tokens than its attention."""

    def forward(self, tokens: Tensor, grid: Grid, through: "Through | None" = None) -> Any:
        """B P+N D -> B P+N D; or the result of `through`, which runs attention and MLP itself."""
        # `through` is called here, not instead of the block: hooks and sharding act on calls of a block.
        return super().forward(tokens, grid) if through is None else through(self, tokens, grid)


Through = Callable[[Block, Tensor, Grid], Any]


class Reduced(NamedTuple):
    """The tokens between two blocks, and what is needed to restore one vector per patch."""

    tokens: Tensor  # B P+M D
    home: Tensor | None = None  # B N: the index of the token of each patch, -1 if it has none; None: all in order
    sizes: Tensor | None = None  # B P+M: how many patches each token represents; None: one
    canvas: Tensor | None = None  # B N D: the last value of each patch before it was pruned; None: nothing was pruned


class Reduction(nn.Module):
    """Runs tokens through blocks; the base class drops random patches in training (arXiv:2208.07220)."""

    def __init__(self, *, num_prefix: int, patch_drop: float = 0.0) -> None:
        super().__init__()
        if not 0.0 <= patch_drop < 1.0:
            raise ConfigError(f"patch_drop is {patch_drop}; it must be at least 0 and less than 1")
        self.num_prefix, self.patch_drop = num_prefix, patch_drop

    def enter(self, tokens: Tensor) -> Reduced:
        """The state before the first block, from the embedded tokens B P+N D."""
        prefix, patches = tokens[:, : self.num_prefix], tokens[:, self.num_prefix :]
        count = patches.shape[1]
        stay = max(count - int(count * self.patch_drop), 1)
        if not self.training or stay == count:
            return Reduced(tokens)
        order = torch.rand(patches.shape[:2], device=tokens.device).argsort(dim=1)[:, :stay]  # B M
        indices = torch.arange(stay, device=tokens.device).expand_as(order) + self.num_prefix
        home = torch.full_like(order[:, :1], -1).expand(-1, count).scatter(1, order, indices)  # B N
        return Reduced(torch.cat([prefix, pick(patches, order)], dim=1), home)

    def step(self, index: int, block: Block, state: Reduced, grid: Grid, run: Run) -> Reduced:
        """Runs one block."""
        return state._replace(tokens=run(block, state.tokens, grid))

    def leave(self, state: Reduced, norm: nn.Module) -> Tensor:
        """Normalised tokens B P+N D, with patches in the order of the grid."""
        tokens = norm(state.tokens)
        if state.home is None:
            return tokens
        canvas = None if state.canvas is None else norm(state.canvas)
        return torch.cat([tokens[:, : self.num_prefix], spread(tokens, state.home, canvas)], dim=1)

    def homes(self, state: Reduced, count: int, moved: Tensor) -> Tensor:
        """The token of each patch, B N, after token i moved to index moved[i], B P+M, or was removed: -1."""
        if state.home is None:
            return moved[:, self.num_prefix : self.num_prefix + count]
        return torch.where(state.home < 0, state.home, moved.gather(1, state.home.clamp(min=0)))


class Merging(Reduction):
    """Merges similar tokens; attention weights a key by its size: log(size) is added to its logits."""

    def __init__(self, config: MergeConfig, *, num_prefix: int, patch_drop: float) -> None:
        super().__init__(num_prefix=num_prefix, patch_drop=patch_drop)
        self.config = config

    def step(self, index: int, block: Block, state: Reduced, grid: Grid, run: Run) -> Reduced:
        """Runs one block."""
        amount = self.config.merged(state.tokens.shape[1], self.num_prefix)
        if amount == 0 and state.sizes is None:
            return super().step(index, block, state, grid, run)
        tokens, sizes, moved = run(block, state.tokens, grid, partial(self._through, sizes=state.sizes, amount=amount))
        return Reduced(tokens, self.homes(state, grid[0] * grid[1], moved), sizes)

    def _through(
        self, block: Block, tokens: Tensor, grid: Grid, *, sizes: Tensor | None, amount: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens B P+M D, their sizes B P+M, and the new index of each old token, B P+M."""
        attention = cast("SoftmaxAttention", block.attention)
        q, k, v = attention.heads(block.read(tokens))
        bias = None if sizes is None else sizes.log()[:, None, None].to(q.dtype)  # B 1 1 P+M
        tokens = block.mix(tokens, attention.mix(q, k, v, bias))
        if sizes is None:
            sizes = tokens.new_ones(tokens.shape[:2], dtype=torch.promote_types(tokens.dtype, torch.float32))
        moved = match(k.mean(dim=1), amount, num_prefix=self.num_prefix)
        tokens, sizes = merge(tokens, sizes, moved, tokens.shape[1] - amount)
        return block.feed(tokens, grid), sizes, moved


class Pruning(Reduction):
    """Keeps the patches with the most attention from the class token, averaged over heads."""

    def __init__(self, config: PruneConfig, *, depth: int, num_prefix: int, patch_drop: float) -> None:
        super().__init__(num_prefix=num_prefix, patch_drop=patch_drop)
        self.config, self.at = config, config.at(depth)

    def step(self, index: int, block: Block, state: Reduced, grid: Grid, run: Run) -> Reduced:
        """Runs one block."""
        others = state.tokens.shape[1] - self.num_prefix
        stay = self.config.kept(others)
        if index not in self.at or stay == others:
            return super().step(index, block, state, grid, run)
        tokens, before, moved = run(block, state.tokens, grid, partial(self._through, stay=stay))
        count = grid[0] * grid[1]
        whole = before[:, self.num_prefix :] if state.home is None else spread(before, state.home, state.canvas)
        return Reduced(tokens, self.homes(state, count, moved), None, whole)

    def _through(self, block: Block, tokens: Tensor, grid: Grid, *, stay: int) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens B P+M D, all tokens before pruning, and the new index of each old token, B P+M."""
        attention = cast("SoftmaxAttention", block.attention)
        q, k, v = attention.heads(block.read(tokens))
        scores = attention.explicit(q[:, :, :1], k, None)[:, :, 0, self.num_prefix :].mean(dim=1)  # B M
        before = block.mix(tokens, attention.mix(q, k, v, None))
        prefix, others = before[:, : self.num_prefix], before[:, self.num_prefix :]
        order = scores.argsort(dim=1, descending=True, stable=True)
        staying, leaving = order[:, :stay].sort(dim=1).values, order[:, stay:]
        left = [prefix, pick(others, staying)]
        if self.config.fuse:
            left.append((pick(others, leaving) * scores.gather(1, leaving)[..., None]).sum(dim=1, keepdim=True))
        indices = torch.arange(self.num_prefix + stay, device=tokens.device).expand(tokens.shape[0], -1)
        moved = torch.full_like(order, -1).scatter(1, staying, indices[:, self.num_prefix :])
        moved = torch.cat([indices[:, : self.num_prefix], moved], dim=1)
        return block.feed(torch.cat(left, dim=1), grid), before, moved


def pick(tokens: Tensor, indices: Tensor) -> Tensor:
    """The tokens with these indices in each sample: B N D, B M -> B M D."""
    return tokens.gather(1, indices[..., None].expand(-1, -1, tokens.shape[2]))


def spread(tokens: Tensor, home: Tensor, canvas: Tensor | None) -> Tensor:
    """One vector for each patch: that of its token, else that of the canvas, else the mean: B N D."""
    gone = (home < 0)[..., None]  # B N 1
    patches = pick(tokens, home.clamp(min=0))
    if canvas is None:
        canvas = patches.masked_fill(gone, 0.0).sum(dim=1, keepdim=True) / (~gone).sum(dim=1, keepdim=True)
    return torch.where(gone, canvas, patches)


def match(features: Tensor, amount: int, *, num_prefix: int) -> Tensor:
    """Bipartite soft matching: B T d -> the new index of each token, B T, after `amount` of them are merged.

    Each of the tokens 0, 2, 4, ... is matched with the most similar of 1, 3, 5, ...; the most similar pairs are merged
    into the second one. The new order is: prefix, rest of the first set, second set.
    """
    features = F.normalize(features, dim=-1)
    scores = features[:, ::2] @ features[:, 1::2].transpose(1, 2)  # B Ta Tb
    firsts, seconds = scores.shape[1:]
    even, odd = (num_prefix + 1) // 2, num_prefix // 2  # prefix tokens in each set
    rows, columns = (torch.arange(count, device=features.device) for count in (firsts, seconds))
    excluded = (rows[:, None] < even) | (columns < odd)
    best, partner = scores.masked_fill(excluded, -math.inf).max(dim=2)  # B Ta
    order = best.argsort(dim=1, descending=True, stable=True)
    leaving, staying = order[:, :amount], order[:, amount:].sort(dim=1).values  # the prefix stays, and comes first
    rank = rows[: firsts - amount]
    of_staying = torch.where(rank < even, 2 * rank, num_prefix + rank - even)
    of_second = torch.where(columns < odd, 2 * columns + 1, num_prefix + firsts - amount - even + columns - odd)
    of_first = torch.zeros_like(order).scatter(1, staying, of_staying.expand_as(staying))
    of_first = of_first.scatter(1, leaving, of_second[partner.gather(1, leaving)])
    interleaved = torch.arange(firsts + seconds, device=features.device)
    interleaved = interleaved // 2 + firsts * (
        interleaved % 2
    )  # token 2 i is i-th of the first set, 2 i + 1 of the second
    return torch.cat([of_first, of_second.expand(order.shape[0], -1)], dim=1)[:, interleaved]


def merge(tokens: Tensor, sizes: Tensor, moved: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The mean of all tokens with the same new index, weighted by size: B T D, B T -> B count D, B count."""
    weighted = tokens * sizes[..., None]
    total = weighted.new_zeros(tokens.shape[0], count, tokens.shape[2])
    total = total.scatter_add(1, moved[..., None].expand_as(weighted), weighted)
    sizes = sizes.new_zeros(sizes.shape[0], count).scatter_add(1, moved, sizes)
    return (total / sizes[..., None]).to(tokens.dtype), sizes
