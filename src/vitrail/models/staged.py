"""Backbones of several stages: each stage has fewer tokens than the one before, and more channels."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from vitrail.config import Count, Rate
from vitrail.errors import ConfigError
from vitrail.layers.patch import Grid
from vitrail.layers.pool import MeanPool
from vitrail.layers.stage import Stage, State, no_prefix, to_tokens
from vitrail.models.backbone import Backbone, BackboneConfig, Features


@dataclass(frozen=True, kw_only=True)
class StagedConfig(BackboneConfig):
    """What the configs of all staged families have: one width and one number of blocks a stage.

    Models whose weights do not belong to one grid take images of any size, and say so by `dynamic_size`.
    """

    dims: tuple[Count, ...]
    depths: tuple[Count, ...]
    drop_path: Rate = 0.0

    def __post_init__(self) -> None:
        """Refuses lists that do not have one entry a stage."""
        super().__post_init__()
        for name in ("dims", "num_heads", "mlp_ratios", "reductions"):
            each = getattr(self, name, self.depths)
            if len(each) != len(self.depths):
                raise ConfigError(f"{name} has {len(each)} numbers, depths {len(self.depths)}; each is one a stage")


def check_heads(dims: Sequence[int], mixers: Sequence[str], *, head_dim: int) -> None:
    """Refuses heads of a width that does not divide that of each stage whose mixer is attention."""
    for dim, mixer in zip(dims, mixers, strict=True):
        if mixer == "attention" and dim % head_dim:
            raise ConfigError(f"head_dim is {head_dim}; it must divide {dim}, the width of a stage with attention")


class Staged(Backbone):
    """Images pass a stem and stages; the last map is normalised, pooled and classified.

    A family builds `stem` (B C H W -> B D h w), `stages`, `norm` (over the tokens B P+N D of the last level) and,
    by `new_head`, `head`.
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
        """The blocks in their order, over all stages."""
        return nn.ModuleList(block for stage in self.stages if isinstance(stage, Stage) for block in stage.blocks)

    @property
    def levels(self) -> Sequence[nn.Module]:
        """The stages, which work on the grid of each level."""
        return tuple(self.stages)

    @property
    def width(self) -> int:
        """The width of the vector that the head reads."""
        return self.config.dims[-1]

    def new_head(self) -> nn.Module:
        """A fresh head; where there are no classes, none."""
        return nn.Linear(self.width, self.config.num_classes) if self.config.num_classes else nn.Identity()

    def features(self, images: Tensor) -> Features:
        """Images B C H W -> Features; the last level is normalised, those before it are as the stages left them."""
        self.check(images)
        maps, levels = self.stem(images), []
        prefix = no_prefix(maps)
        for stage in self.stages:
            maps, prefix = stage(maps, prefix, self.run)
            levels.append(maps)
        return self.gather(levels, prefix, self.norm)

    def intermediates(self, images: Tensor, layers: Sequence[int] | None = None) -> list[Features]:
        """Features after the chosen blocks (all by default; negative counts from the end), without the final norm."""
        self.check(images)
        wanted, found, index = self.chosen(layers), dict[int, Features](), 0
        maps, levels = self.stem(images), list[Tensor]()
        prefix = no_prefix(maps)
        for stage in cast("Iterable[Stage]", self.stages):
            state: State = stage.receive(maps, prefix)
            for block in stage.blocks:
                state = stage.step(block, state, self.run)
                if index in wanted:
                    now, prefix = stage.level(state)
                    found[index] = self.gather([*levels, now], prefix, nn.Identity())
                index += 1
            maps, prefix = stage.leave(state)
            levels.append(maps)
        return [found[index] for index in wanted]

    def gather(self, levels: Sequence[Tensor], prefix: Tensor, norm: nn.Module) -> Features:
        """Features of the maps B C h w of each level so far, and the prefix tokens B P D beside the last."""
        last = levels[-1]
        tokens = norm(torch.cat([prefix, to_tokens(last)], dim=1))
        grid: Grid = (last.shape[2], last.shape[3])
        return Features.from_tokens(tokens, grid, finer=tuple(levels[:-1]))

    def pooled(self, features: Features) -> Tensor:
        """Features -> the vector B D that the head reads."""
        return self.pool(features.prefix, features.patches)
