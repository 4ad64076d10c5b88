"""Fewer tokens than patches: dropped at random in training, pruned by importance, or merged with their likes.

What leaves the model still has one vector for each patch, in the order of the grid. A merged token is copied to all
its places; a pruned patch keeps the value that it had when it was pruned; a patch that was dropped at random in
training has the mean of those that stayed, so that the mean of all is the mean of what was seen.
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
    """How a plain ViT goes on with fewer tokens: in each block, between attention and MLP."""

    needs_class_token: ClassVar[bool] = False

    @abstractmethod
    def build(self, *, depth: int, num_prefix: int, patch_drop: float) -> "Reduction":
        """What leads tokens through the blocks."""

    @abstractmethod
    def counts(self, patches: int, *, depth: int, num_prefix: int) -> list[tuple[int, int]]:
        """The tokens that attention and MLP of each block read, the prefix included."""


@dataclass(frozen=True, kw_only=True)
class MergeConfig(ReduceConfig, kind="merge"):
    """In each block the `amount` most similar pairs of tokens become one each (ToMe, arXiv:2210.09461)."""

    amount: CountFromZero = 8

    def build(self, *, depth: int, num_prefix: int, patch_drop: float) -> "Reduction":
        """What leads tokens through the blocks."""
        return Merging(self, num_prefix=num_prefix, patch_drop=patch_drop)

    def merged(self, tokens: int, num_prefix: int) -> int:
        """How many tokens go in a block; at most half of the patches can, and the prefix never does."""
        return min(self.amount, (tokens - num_prefix) // 2)

    def counts(self, patches: int, *, depth: int, num_prefix: int) -> list[tuple[int, int]]:
        """The tokens that attention and MLP of each block read, the prefix included."""
        tokens, found = num_prefix + patches, []
        for _ in range(depth):
            found.append((tokens, tokens - self.merged(tokens, num_prefix)))
            tokens = found[-1][1]
        return found


@dataclass(frozen=True, kw_only=True)
class PruneConfig(ReduceConfig, kind="prune"):
    """After the attention of some blocks, the patches that the class token looks at least go (EViT, arXiv:2202.07800).

    A share `keep` stays in each of the `blocks`: by default those after a quarter, a half and three quarters of all.
    `fuse` leaves one token in place of those that go: their sum, weighted by the class token's attention.
    """

    needs_class_token = True
    keep: Annotated[float, Range(0.0, 1.0, open=True)] = 0.7
    blocks: tuple[CountFromZero, ...] | None = None
    fuse: bool = True

    def build(self, *, depth: int, num_prefix: int, patch_drop: float) -> "Reduction":
        """What leads tokens through the blocks."""
        return Pruning(self, depth=depth, num_prefix=num_prefix, patch_drop=patch_drop)

    def at(self, depth: int) -> tuple[int, ...]:
        """The blocks that prune, of so many."""
        if self.blocks is None:
            return tuple(sorted({depth * quarter // 4 for quarter in (1, 2, 3)})) if depth else ()
        if wrong := [block for block in self.blocks if block >= depth]:
            raise ConfigError(f"reduce.blocks has {wrong[0]}; the model has {depth} blocks, from 0")
        return self.blocks

    def kept(self, others: int) -> int:
        """How many tokens stay in a block, of so many beside the prefix."""
        return math.ceil(self.keep * others)

    def counts(self, patches: int, *, depth: int, num_prefix: int) -> list[tuple[int, int]]:
        """The tokens that attention and MLP of each block read, the prefix included."""
        others, found = patches, []
        for block in range(depth):
            before, stay = others, self.kept(others)
            if block in self.at(depth) and stay < others:
                others = stay + self.fuse
            found.append((num_prefix + before, num_prefix + others))
        return found


class ReducibleBlock(Block):
    """A block whose second half may have fewer tokens than its first."""

    def forward(self, tokens: Tensor, grid: Grid, through: "Through | None" = None) -> Any:
        """B P+N D -> B P+N D; or what `through` makes of the two halves."""
        # In here, not around the block: hooks and sharding act on calls of a block.
        return super().forward(tokens, grid) if through is None else through(self, tokens, grid)


Through = Callable[[Block, Tensor, Grid], Any]


class Reduced(NamedTuple):
    """Tokens on their way through the blocks, and what is needed to put patches back in their places."""

    tokens: Tensor  # B P+M D
    home: Tensor | None = None  # B N: the token that holds each patch, -1 where none does; None: each its own
    sizes: Tensor | None = None  # B P+M: how many patches a token stands for; None: one
    canvas: Tensor | None = None  # B N D: what each patch was when it was last whole; None: nothing was pruned


class Reduction(nn.Module):
    """Leads tokens through blocks; this one drops a random share of patches in training alone (arXiv:2208.07220)."""

    def __init__(self, *, num_prefix: int, patch_drop: float = 0.0) -> None:
        super().__init__()
        if not 0.0 <= patch_drop < 1.0:
            raise ConfigError(f"patch_drop is {patch_drop}; it must be at least 0 and less than 1")
        self.num_prefix, self.patch_drop = num_prefix, patch_drop

    def enter(self, tokens: Tensor) -> Reduced:
        """The embedded tokens B P+N D, with their positions."""
        prefix, patches = tokens[:, : self.num_prefix], tokens[:, self.num_prefix :]
        count = patches.shape[1]
        stay = max(count - int(count * self.patch_drop), 1)
        if not self.training or stay == count:
            return Reduced(tokens)
        order = torch.rand(patches.shape[:2], device=tokens.device).argsort(dim=1)[:, :stay]  # B M
        places = torch.arange(stay, device=tokens.device).expand_as(order) + self.num_prefix
        home = torch.full_like(order[:, :1], -1).expand(-1, count).scatter(1, order, places)  # B N
        return Reduced(torch.cat([prefix, pick(patches, order)], dim=1), home)

    def step(self, index: int, block: Block, state: Reduced, grid: Grid, run: Run) -> Reduced:
        """Through one block."""
        return state._replace(tokens=run(block, state.tokens, grid))

    def leave(self, state: Reduced, norm: nn.Module) -> Tensor:
        """Normalised tokens B P+N D, patches in the order of the grid."""
        tokens = norm(state.tokens)
        if state.home is None:
            return tokens
        canvas = None if state.canvas is None else norm(state.canvas)
        return torch.cat([tokens[:, : self.num_prefix], spread(tokens, state.home, canvas)], dim=1)

    def homes(self, state: Reduced, count: int, moved: Tensor) -> Tensor:
        """Where patches are, B N, after token i went to place moved[i], B P+M, or nowhere: -1."""
        if state.home is None:
            return moved[:, self.num_prefix : self.num_prefix + count]
        return torch.where(state.home < 0, state.home, moved.gather(1, state.home.clamp(min=0)))


class Merging(Reduction):
    """Attention counts a token as often as patches are in it: log(size) is added to the logits of its key."""

    def __init__(self, config: MergeConfig, *, num_prefix: int, patch_drop: float) -> None:
        super().__init__(num_prefix=num_prefix, patch_drop=patch_drop)
        self.config = config

    def step(self, index: int, block: Block, state: Reduced, grid: Grid, run: Run) -> Reduced:
        """Through one block."""
        amount = self.config.merged(state.tokens.shape[1], self.num_prefix)
        if amount == 0 and state.sizes is None:
            return super().step(index, block, state, grid, run)
        tokens, sizes, moved = run(block, state.tokens, grid, partial(self._through, sizes=state.sizes, amount=amount))
        return Reduced(tokens, self.homes(state, grid[0] * grid[1], moved), sizes)

    def _through(
        self, block: Block, tokens: Tensor, grid: Grid, *, sizes: Tensor | None, amount: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens B P+M D, their sizes B P+M, and where each went, B P+M."""
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
    """Keeps the patches that the class token looks at most, in the mean of the heads."""

    def __init__(self, config: PruneConfig, *, depth: int, num_prefix: int, patch_drop: float) -> None:
        super().__init__(num_prefix=num_prefix, patch_drop=patch_drop)
        self.config, self.at = config, config.at(depth)

    def step(self, index: int, block: Block, state: Reduced, grid: Grid, run: Run) -> Reduced:
        """Through one block."""
        others = state.tokens.shape[1] - self.num_prefix
        stay = self.config.kept(others)
        if index not in self.at or stay == others:
            return super().step(index, block, state, grid, run)
        tokens, before, moved = run(block, state.tokens, grid, partial(self._through, stay=stay))
        count = grid[0] * grid[1]
        whole = before[:, self.num_prefix :] if state.home is None else spread(before, state.home, state.canvas)
        return Reduced(tokens, self.homes(state, count, moved), None, whole)

    def _through(self, block: Block, tokens: Tensor, grid: Grid, *, stay: int) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens B P+M D, all tokens before some went, and where each went, B P+M."""
        attention = cast("SoftmaxAttention", block.attention)
        q, k, v = attention.heads(block.read(tokens))
        looks = attention.explicit(q[:, :, :1], k, None)[:, :, 0, self.num_prefix :].mean(dim=1)  # B M
        before = block.mix(tokens, attention.mix(q, k, v, None))
        prefix, others = before[:, : self.num_prefix], before[:, self.num_prefix :]
        order = looks.argsort(dim=1, descending=True, stable=True)
        staying, leaving = order[:, :stay].sort(dim=1).values, order[:, stay:]
        left = [prefix, pick(others, staying)]
        if self.config.fuse:
            left.append((pick(others, leaving) * looks.gather(1, leaving)[..., None]).sum(dim=1, keepdim=True))
        places = torch.arange(self.num_prefix + stay, device=tokens.device).expand(tokens.shape[0], -1)
        moved = torch.full_like(order, -1).scatter(1, staying, places[:, self.num_prefix :])
        return block.feed(torch.cat(left, dim=1), grid), before, torch.cat([places[:, : self.num_prefix], moved], dim=1)


def pick(tokens: Tensor, places: Tensor) -> Tensor:
    """The tokens at some places of each sample: B N D, B M -> B M D."""
    return tokens.gather(1, places[..., None].expand(-1, -1, tokens.shape[2]))


def spread(tokens: Tensor, home: Tensor, canvas: Tensor | None) -> Tensor:
    """One vector for each patch: that of its token, else that of the canvas, else the mean of all: B N D."""
    gone = (home < 0)[..., None]  # B N 1
    patches = pick(tokens, home.clamp(min=0))
    if canvas is None:
        canvas = patches.masked_fill(gone, 0.0).sum(dim=1, keepdim=True) / (~gone).sum(dim=1, keepdim=True)
    return torch.where(gone, canvas, patches)


def match(features: Tensor, amount: int, *, num_prefix: int) -> Tensor:
    """Bipartite soft matching: B T d -> where each token goes, B T, when `amount` of every other one join a partner.

    Tokens 0, 2, 4, ... each find the most similar of 1, 3, 5, ...; the most similar pairs become one, at the place of
    the partner. Afterwards come the prefix, what is left of the first set, and the second.
    """
    features = F.normalize(features, dim=-1)
    scores = features[:, ::2] @ features[:, 1::2].transpose(1, 2)  # B Ta Tb
    firsts, seconds = scores.shape[1:]
    even, odd = (num_prefix + 1) // 2, num_prefix // 2  # prefix tokens in each set
    rows, columns = (torch.arange(count, device=features.device) for count in (firsts, seconds))
    taboo = (rows[:, None] < even) | (columns < odd)
    best, partner = scores.masked_fill(taboo, -math.inf).max(dim=2)  # B Ta
    order = best.argsort(dim=1, descending=True, stable=True)
    leaving, staying = order[:, :amount], order[:, amount:].sort(dim=1).values  # the prefix stays, and comes first
    rank = rows[: firsts - amount]
    of_staying = torch.where(rank < even, 2 * rank, num_prefix + rank - even)
    of_second = torch.where(columns < odd, 2 * columns + 1, num_prefix + firsts - amount - even + columns - odd)
    of_first = torch.zeros_like(order).scatter(1, staying, of_staying.expand_as(staying))
    of_first = of_first.scatter(1, leaving, of_second[partner.gather(1, leaving)])
    woven = torch.arange(firsts + seconds, device=features.device)
    woven = woven // 2 + firsts * (woven % 2)  # token 2 i is the i-th of the first set, 2 i + 1 of the second
    return torch.cat([of_first, of_second.expand(order.shape[0], -1)], dim=1)[:, woven]


def merge(tokens: Tensor, sizes: Tensor, moved: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The mean of all tokens that go to one place, weighted by their sizes: B T D, B T -> B count D, B count."""
    weighted = tokens * sizes[..., None]
    total = weighted.new_zeros(tokens.shape[0], count, tokens.shape[2])
    total = total.scatter_add(1, moved[..., None].expand_as(weighted), weighted)
    sizes = sizes.new_zeros(sizes.shape[0], count).scatter_add(1, moved, sizes)
    return (total / sizes[..., None]).to(tokens.dtype), sizes
