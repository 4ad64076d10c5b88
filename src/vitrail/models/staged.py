"""Backbones with several stages: each stage has fewer tokens and more channels than the previous one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from vitrail.config import Count, Rate
from vitrail.errors import ConfigError
from vitrail.layers.conv import channels_last
from vitrail.layers.patch import Grid
from vitrail.layers.pool import MeanPool
from vitrail.layers.stage import Stage, State, no_prefix, to_tokens
from vitrail.models.backbone import Backbone, BackboneConfig, Features


@dataclass(frozen=True, kw_only=True)
class StagedConfig(BackboneConfig):
    """The options of all staged families: a width and a number of blocks per stage.

    Models whose weights do not depend on the grid take images of any size: their `dynamic_size` is True.
    """

    dims: tuple[Count, ...]
    depths: tuple[Count, ...]
    drop_path: Rate = 0.0

    def __post_init__(self) -> None:
        """Raises ConfigError if a list does not have one entry per stage."""
        super().__post_init__()
        for name in ("dims", "num_heads", "mlp_ratios", "reductions"):
            each = getattr(self, name, self.depths)
            if len(each) != len(self.depths):
                raise ConfigError(f"{name} has {len(each)} entries, but depths has {len(self.depths)}")


def check_heads(dims: Sequence[int], mixers: Sequence[str], *, head_dim: int) -> None:
    """Raises ConfigError if `head_dim` does not divide the width of a stage with attention."""
    for dim, mixer in zip(dims, mixers, strict=True):
        if mixer == "attention" and dim % head_dim:
            raise ConfigError(f"head_dim {head_dim} does not divide {dim}, the width of a stage with attention")


class Staged(Backbone):
    """Stem, stages, norm, pooling and head.

    A family builds `stem` (B C H W -> B D h w), `stages`, `norm` (for the tokens B P+N D of the last level) and, with
    `new_head`, `head`.
    """

    config: StagedConfig
    stem: nn.Module
    stages: nn.ModuleList  # of Stage
    norm: nn.Module

    def __init__(self, config: StagedConfig) -> None:
        super().__init__(config)
        self.pool: nn.Module = MeanPool()

    @property
    def blocks(self) -> nn.ModuleList:  # type: ignore[override]
        """All blocks in order, over all stages."""
        return nn.ModuleList(block for stage in self.stages if isinstance(stage, Stage) for block in stage.blocks)

    @property
    def levels(self) -> Sequence[nn.Module]:
        """The stages, one per level."""
        return tuple(self.stages)

    @property
    def width(self) -> int:
        """The width of the vector that the head reads."""
        return self.config.dims[-1]

    def new_head(self) -> nn.Module:
        """A fresh head; where there are no classes, none."""
        return nn.Linear(self.width, self.config.num_classes) if self.config.num_classes else nn.Identity()

    def features(self, images: Tensor) -> Features:
        """Images B C H W -> Features; only the last level is normalised."""
        self.check(images)
        maps, levels = self.stem(channels_last(images)), []
        prefix = no_prefix(maps)
        for stage in self.stages:
            maps, prefix = stage(maps, prefix, self.run)
            levels.append(maps)
        return self.gather(levels, prefix, self.norm)

    def intermediates(self, images: Tensor, layers: Sequence[int] | None = None) -> list[Features]:
        """Features after the chosen blocks (all by default; negative counts from the end), without the final norm."""
        return self.read(images, self.chosen(layers))[1]

    def read(self, images: Tensor, layers: Sequence[int]) -> tuple[Features, list[Features]]:
        """`features` and the `intermediates` of these blocks, in one pass."""
        if not layers:
            return self.features(images), []
        self.check(images)
        selected, index = self.chosen(layers), 0
        found: dict[int, Features] = {}  # not dict[int, Features](), which torch.compile cannot trace
        levels: list[Tensor] = []
        maps = self.stem(channels_last(images))
        prefix = no_prefix(maps)
        for stage in cast("Iterable[Stage]", self.stages):
            state: State = stage.receive(maps, prefix)
            for block in stage.blocks:
                state = stage.step(block, state, self.run)
                if index in selected:
                    now, own = stage.level(state)
                    found[index] = self.gather([*levels, now], own, nn.Identity())
                index += 1
            maps, prefix = stage.leave(state)
            levels.append(maps)
        return self.gather(levels, prefix, self.norm), [found[index] for index in selected]

    def gather(self, levels: Sequence[Tensor], prefix: Tensor, norm: nn.Module) -> Features:
        """Features of the maps B C h w of the levels so far, and the prefix tokens B P D of the last one."""
        last = levels[-1]
        tokens = norm(torch.cat([prefix, to_tokens(last)], dim=1))
        grid: Grid = (last.shape[2], last.shape[3])
        return Features.from_tokens(tokens, grid, finer=tuple(levels[:-1]))

    def pooled(self, features: Features) -> Tensor:
        """Features -> the vector B D that the head reads."""
        return self.pool(features.prefix, features.patches)
