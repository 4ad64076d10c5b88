"""Saliency by perturbation: how the output changes when parts of the image are hidden."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.config import Count, CountFromZero, Rate
from vitrail.errors import ConfigError
from vitrail.explain.methods.method import Method
from vitrail.explain.methods.target import Target
from vitrail.models.backbone import Backbone

MAX_BATCH = 256  # images in one forward pass
MASKS_AT_A_TIME = 64  # so that masks are the same for any number of images


@dataclass(frozen=True, kw_only=True)
class OcclusionConfig(Method, kind="occlusion"):
    """How much the output falls when a window over the pixel is filled (Zeiler and Fergus 2013, arXiv:1311.2901).

    The window has `size` pixels a side, by default an eighth of the image's shorter side, and moves by `stride`, by
    default half of its size; a pixel gets the mean of all windows over it. For normalised images, a `fill` of 0 is the
    mean of the data.
    """

    size: Count | None = None
    stride: Count | None = None
    fill: float = 0.0

    @torch.no_grad()
    def maps(self, model: Backbone, images: Tensor, target: Target) -> Tensor:
        """B H W; negative where the output rises."""
        height, width = images.shape[2:]
        size = self.size or max(min(height, width) // 8, 1)
        stride = self.stride or max(size // 2, 1)
        if size > min(height, width):
            raise ConfigError(f"a window of {size} pixels is larger than the image of {height} x {width}")
        hidden = windows(height, width, size=size, stride=stride).to(images)  # M H W
        whole, covered = target.output(model(images)), hidden.sum(dim=0)
        falls = torch.zeros_like(images[:, 0])
        for some in hidden.split(max(MAX_BATCH // len(images), 1)):
            filled = torch.where(some[:, None, None] > 0, self.fill, images)  # m B C H W
            outputs = target.repeat(len(some)).output(model(filled.flatten(0, 1)))  # mB
            falls = falls + torch.einsum("mb,mhw->bhw", whole - outputs.unflatten(0, (len(some), -1)), some)
        return falls / covered


def windows(height: int, width: int, *, size: int, stride: int) -> Tensor:
    """Which pixels each window covers, M H W of 0 and 1; the last windows of a row or column end with the image."""
    sides = []
    for length in (height, width):
        starts = torch.tensor([*range(0, length - size, stride), length - size])
        pixels = torch.arange(length)
        sides.append((pixels >= starts[:, None]) & (pixels < starts[:, None] + size))  # M_y H
    return (sides[0][:, None, :, None] & sides[1][None, :, None, :]).flatten(0, 1).float()


@dataclass(frozen=True, kw_only=True)
class RISEConfig(Method, kind="rise"):
    """The mean of random masks, each weighted by the score of the masked image (RISE, arXiv:1806.07421).

    A mask is a coarse grid of `cells` x `cells`, each open with probability `open`, enlarged smoothly and shifted at
    random; masked pixels become 0, the mean of normalised images.
    """

    masks: Count = 1000
    cells: Count = 7
    open: Rate = 0.5
    seed: CountFromZero = 0

    def __post_init__(self) -> None:
        """Checks that masks let something through."""
        super().__post_init__()
        if self.open == 0.0:
            raise ConfigError("open is 0, so that all pixels would be masked; it must be greater than 0")

    @torch.no_grad()
    def maps(self, model: Backbone, images: Tensor, target: Target) -> Tensor:
        """B H W, not negative."""
        generator = torch.Generator().manual_seed(self.seed)
        total = images.new_zeros(len(images), *images.shape[2:])
        for first in range(0, self.masks, MASKS_AT_A_TIME):
            drawn = self.draw(min(MASKS_AT_A_TIME, self.masks - first), (images.shape[2], images.shape[3]), generator)
            for masks in drawn.to(images).split(max(MAX_BATCH // len(images), 1)):  # m H W
                masked = (masks[:, None, None] * images).flatten(0, 1)  # mB C H W
                scores = target.repeat(len(masks)).score(model(masked)).unflatten(0, (len(masks), -1))  # m B
                total += torch.einsum("mb,mhw->bhw", scores.to(masks), masks)
        return total / (self.masks * self.open)

    def draw(self, count: int, size: tuple[int, int], generator: torch.Generator) -> Tensor:
        """Masks M H W from 0 to 1."""
        cell = [-(-length // self.cells) for length in size]  # pixels
        coarse = (torch.rand(count, 1, self.cells, self.cells, generator=generator) < self.open).float()
        large = F.interpolate(coarse, [(self.cells + 1) * side for side in cell], mode="bilinear", align_corners=False)
        shifts = [torch.randint(side, (count,), generator=generator).tolist() for side in cell]
        cut = [one[:, y : y + size[0], x : x + size[1]] for one, y, x in zip(large, *shifts, strict=True)]
        return torch.cat(cut)
