"""A stage of a hierarchical model: downsampling, then blocks, on maps or on tokens."""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import NamedTuple

from torch import Tensor, nn

from vitrail.layers.patch import Grid
from vitrail.layers.position import AddedPosition
from vitrail.layers.tokens import PrefixTokens

Run = Callable[..., Tensor]  # calls a block with its inputs; a backbone's recomputes it in the backward pass


class State(NamedTuple):
    """The state between the blocks of a stage: a map B D h w, or tokens B P+N D, and the grid of the patches."""

    x: Tensor
    grid: Grid


class Stage(nn.Module):
    """B C H W -> B D h w and the prefix tokens B P D, usually none."""

    def __init__(self, blocks: Iterable[nn.Module], *, downsample: nn.Module | None = None) -> None:
        super().__init__()
        self.downsample = nn.Identity() if downsample is None else downsample
        self.blocks = nn.ModuleList(blocks)

    @abstractmethod
    def enter(self, maps: Tensor) -> State:
        """The map of the previous stage, B C H W -> the input of the first block."""

    def receive(self, maps: Tensor, prefix: Tensor) -> State:
        """Like `enter`, with the prefix tokens B P C of the previous stage, which most stages drop."""
        return self.enter(maps)

    @abstractmethod
    def step(self, block: nn.Module, state: State, run: Run) -> State:
        """Runs one block."""

    @abstractmethod
    def level(self, state: State) -> tuple[Tensor, Tensor]:
        """The map B D h w and the prefix tokens B P D of a state."""

    def leave(self, state: State) -> tuple[Tensor, Tensor]:
        """The map B D h w and the prefix tokens B P D that the stage returns."""
        return self.level(state)

    def forward(self, maps: Tensor, prefix: Tensor, run: Run) -> tuple[Tensor, Tensor]:
        """B C H W and B P C of the previous stage -> B D h w and B P D."""
        state = self.receive(maps, prefix)
        for block in self.blocks:
            state = self.step(block, state, run)
        return self.leave(state)


class MapStage(Stage):
    """Blocks are `block(maps) -> maps`, B D h w."""

    def enter(self, maps: Tensor) -> State:
        """The map of the previous stage, B C H W -> the input of the first block."""
        maps = self.downsample(maps)
        return State(maps, (maps.shape[2], maps.shape[3]))

    def step(self, block: nn.Module, state: State, run: Run) -> State:
        """Runs one block."""
        return State(run(block, state.x), state.grid)

    def level(self, state: State) -> tuple[Tensor, Tensor]:
        """The map B D h w and no prefix, B 0 D."""
        return state.x, no_prefix(state.x)


class TokenStage(Stage):
    """Blocks are `block(tokens, grid) -> tokens`, B P+N D; `norm` normalises the tokens at the end of the stage."""

    def __init__(
        self,
        blocks: Iterable[nn.Module],
        *,
        downsample: nn.Module | None = None,
        prefix: PrefixTokens | None = None,
        position: AddedPosition | None = None,
        norm: nn.Module | None = None,
    ) -> None:
        super().__init__(blocks, downsample=downsample)
        self.prefix = nn.Identity() if prefix is None else prefix
        self.position = position
        self.norm = nn.Identity() if norm is None else norm

    def enter(self, maps: Tensor) -> State:
        """The map of the previous stage, B C H W -> the tokens of the first block."""
        maps = self.downsample(maps)
        grid = (maps.shape[2], maps.shape[3])
        tokens = self.prefix(to_tokens(maps))
        return State(tokens if self.position is None else self.position(tokens, grid), grid)

    def step(self, block: nn.Module, state: State, run: Run) -> State:
        """Runs one block."""
        return State(run(block, state.x, state.grid), state.grid)

    def level(self, state: State) -> tuple[Tensor, Tensor]:
        """The map B D h w and the prefix tokens B P D of a state."""
        num_prefix = state.x.shape[1] - state.grid[0] * state.grid[1]
        return to_map(state.x[:, num_prefix:], state.grid), state.x[:, :num_prefix]

    def leave(self, state: State) -> tuple[Tensor, Tensor]:
        """The map B D h w and the prefix tokens B P D that the stage returns."""
        return self.level(State(self.norm(state.x), state.grid))


def no_prefix(maps: Tensor) -> Tensor:
    """The prefix tokens of a map that has none: B D h w -> B 0 D."""
    return maps.new_zeros(maps.shape[0], 0, maps.shape[1])


def to_tokens(maps: Tensor) -> Tensor:
    """B D h w -> B N D, rows first."""
    return maps.flatten(2).transpose(1, 2)


def to_map(patches: Tensor, grid: Grid) -> Tensor:
    """B N D -> B D h w."""
    return patches.transpose(1, 2).unflatten(2, grid)


class OnTokens(nn.Module):
    """Applies a layer for tokens, such as a norm, to maps: B D h w -> B D h w."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, maps: Tensor) -> Tensor:
        """B D h w -> B D h w."""
        result: Tensor = self.layer(maps.permute(0, 2, 3, 1))  # B h w D
        return result.permute(0, 3, 1, 2)
