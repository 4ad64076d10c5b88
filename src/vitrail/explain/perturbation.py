"""Saliency by perturbation: what the model says when parts of the image are hidden."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.config import Count, CountFromZero, Rate
from vitrail.errors import ConfigError
from vitrail.explain.method import Method, probability, score
from vitrail.models.backbone import Backbone

TOGETHER = 256  # images in one forward pass
DRAWN = 64  # masks at a time, so that they are the same for every number of images


@dataclass(frozen=True, kw_only=True)
class OcclusionConfig(Method, kind="occlusion"):
    """How far the logit falls when a window over the pixel is filled (Zeiler and Fergus 2013, arXiv:1311.2901).

    A window has `size` pixels a side, an eighth of the image's shorter one by default, and moves by `stride`, by
    default half of that; a pixel has the mean of all windows over it. For images that are normalised, a `fill` of 0 is
    the data's mean.
    """

    size: Count | None = None
    stride: Count | None = None
    fill: float = 0.0

    @torch.no_grad()
    def maps(self, model: Backbone, images: Tensor, target: Tensor) -> Tensor:
        """B H W; negative where the logit rises."""
        height, width = images.shape[2:]
        size = self.size or max(min(height, width) // 8, 1)
        stride = self.stride or max(size // 2, 1)
        if size > min(height, width):
            raise ConfigError(f"a window of {size} pixels is larger than the image of {height} x {width}")
        hidden = windows(height, width, size=size, stride=stride).to(images)  # M H W
        whole, covered = score(model, images, target), hidden.sum(dim=0)
        falls = torch.zeros_like(images[:, 0])
        for some in hidden.split(max(TOGETHER // len(images), 1)):
            filled = torch.where(some[:, None, None] > 0, self.fill, images)  # m B C H W
            scores = score(model, filled.flatten(0, 1), target.repeat(len(some))).unflatten(0, (len(some), -1))  # m B
            falls = falls + torch.einsum("mb,mhw->bhw", whole - scores, some)
        return falls / covered


def windows(height: int, width: int, *, size: int, stride: int) -> Tensor:
    """Which pixels each window covers, M H W of 0 and 1; the last row and column of windows end with the image."""
    sides = []
    for length in (height, width):
        starts = torch.tensor([*range(0, length - size, stride), length - size])
        places = torch.arange(length)
        sides.append((places >= starts[:, None]) & (places < starts[:, None] + size))  # M_y H
    return (sides[0][:, None, :, None] & sides[1][None, :, None, :]).flatten(0, 1).float()


@dataclass(frozen=True, kw_only=True)
class RISEConfig(Method, kind="rise"):
    """The mean of random masks, each weighted by how likely the class is under it (RISE, arXiv:1806.07421).

    A mask is a coarse grid of `cells` x `cells`, each open with probability `open`, enlarged smoothly and moved at
    random; what it closes becomes 0, the mean of images that are normalised.
    """

    masks: Count = 1000
    cells: Count = 7
    open: Rate = 0.5
    seed: CountFromZero = 0

    def __post_init__(self) -> None:
        """Refuses masks that are never open."""
        super().__post_init__()
        if self.open == 0.0:
            raise ConfigError("open is 0; masks must let something through")

    @torch.no_grad()
    def maps(self, model: Backbone, images: Tensor, target: Tensor) -> Tensor:
        """B H W, none negative."""
        generator = torch.Generator().manual_seed(self.seed)
        total = images.new_zeros(len(images), *images.shape[2:])
        for first in range(0, self.masks, DRAWN):
            drawn = self.draw(min(DRAWN, self.masks - first), (images.shape[2], images.shape[3]), generator)
            for masks in drawn.to(images).split(max(TOGETHER // len(images), 1)):  # m H W
                seen = (masks[:, None, None] * images).flatten(0, 1)  # mB C H W
                likely = probability(model, seen, target.repeat(len(masks))).unflatten(0, (len(masks), -1))  # m B
                total += torch.einsum("mb,mhw->bhw", likely.to(masks), masks)
        return total / (self.masks * self.open)

    def draw(self, count: int, size: tuple[int, int], generator: torch.Generator) -> Tensor:
        """Masks M H W from 0 to 1."""
        cell = [-(-length // self.cells) for length in size]  # pixels
        coarse = (torch.rand(count, 1, self.cells, self.cells, generator=generator) < self.open).float()
        large = F.interpolate(coarse, [(self.cells + 1) * side for side in cell], mode="bilinear", align_corners=False)
        moves = [torch.randint(side, (count,), generator=generator).tolist() for side in cell]
        cut = [one[:, y : y + size[0], x : x + size[1]] for one, y, x in zip(large, *moves, strict=True)]
        return torch.cat(cut)
