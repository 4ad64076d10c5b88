"""The padding of a batch of images of different sizes, as attention and positions see it."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.layers.patch import Grid


class Padding(NamedTuple):
    """Which tokens of L levels are padding; each image lies in the top left corner of its maps."""

    tokens: Tensor  # B S bool: True for padding
    counts: Tensor  # B L 2: how many columns and rows of each map belong to the image
    sizes: Tensor  # L 2: how many there are

    @classmethod
    def of(cls, valid: Tensor, grids: Sequence[Grid]) -> "Padding":
        """From the pixels that belong to the images, B H W bool, as they are seen on the grids of L levels."""
        maps = [F.interpolate(valid[None].float(), size=grid)[0] > 0 for grid in grids]  # B h w each, nearest pixel
        counts = torch.stack([torch.stack([one[:, 0].sum(1), one[:, :, 0].sum(1)], dim=1) for one in maps], dim=1)
        sizes = torch.tensor([(columns, rows) for rows, columns in grids], device=valid.device)
        return cls(~torch.cat([one.flatten(1) for one in maps], dim=1), counts, sizes)

    @property
    def seen(self) -> Tensor:
        """Where attention may look, B 1 1 S: True for what is not padding."""
        return ~self.tokens[:, None, None]

    def ratios(self, like: Tensor) -> Tensor:
        """The shares of each map's sides that belong to the image: B L 2."""
        return self.counts.to(like) / self.sizes.to(like)

    def scaled(self, references: Tensor) -> Tensor:
        """Points or boxes as shares of the image, B Q 1 2 (or 4), as shares of each map: B Q L 2 (or 4)."""
        ratios = self.ratios(references)[:, None]  # B 1 L 2
        return references * (ratios if references.shape[-1] == 2 else torch.cat([ratios, ratios], dim=-1))
