"""Staged backbones whose norms and branches fold into plain layers for inference."""

from dataclasses import dataclass
from typing import Self

from vitrail.config import apply
from vitrail.layers.fuse import fuse
from vitrail.models.staged import Staged, StagedConfig


@dataclass(frozen=True, kw_only=True)
class FusedConfig(StagedConfig):
    """`fused` says that the model is in the form for inference, so that it can be saved and loaded as such."""

    fused: bool = False


class FusedStaged(Staged):
    """A family builds itself as it learns, and calls `settle` at the end of its constructor."""

    config: FusedConfig

    def settle(self) -> None:
        """Brings a model that is just built into the form that its config asks for."""
        if self.config.fused:
            fuse(self)

    def fuse(self) -> Self:
        """Folds, in place, batch norms and parallel branches into plain layers: the same outputs, fewer weights.

        For inference: the norms keep the statistics that they have now, and stop learning.
        """
        if not self.config.fused:
            fuse(self)
            self.config = apply(self.config, {"fused": True})
        return self
