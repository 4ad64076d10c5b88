"""Staged backbones whose norms and branches fold into plain layers for inference."""

from dataclasses import dataclass
from typing import Self

from vitrail.config import apply
from vitrail.layers.fuse import fuse
from vitrail.models.staged import Staged, StagedConfig


@dataclass(frozen=True, kw_only=True)
class FusedConfig(StagedConfig):
    """`fused`: whether the model is in its fused form for inference, so that it can be saved and loaded in it."""

    fused: bool = False


class FusedStaged(Staged):
    """A family builds its training form, and calls `settle` at the end of its constructor."""

    config: FusedConfig

    def settle(self) -> None:
        """Fuses a new model if its config says so."""
        if self.config.fused:
            fuse(self)

    def fuse(self) -> Self:
        """Folds batch norms and parallel branches into plain layers, in place: the same outputs, fewer weights.

        For inference only: the statistics of the norms become constants.
        """
        if not self.config.fused:
            fuse(self)
            self.config = apply(self.config, {"fused": True})
        return self
