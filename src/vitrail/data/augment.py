"""Augmentation in batches on the device; each sample's randomness comes from (seed, epoch, its number) alone."""

from dataclasses import dataclass
from typing import Literal

from vitrail.config import Config, CountFromZero, NotNegative, Rate


@dataclass(frozen=True, kw_only=True)
class AugmentConfig(Config):
    """What happens to a training image before the model sees it, in this order.

    `crop` "resized" takes a random part of the image (`scale` of its area, `ratio` of its sides), "shift" pads by
    `padding` pixels and takes a window of the original size, "none" resizes the whole. `colour` is the strength of
    brightness, contrast, saturation and hue; `randaugment` the number of operations of strength `magnitude` (of 10).
    """

    crop: Literal["resized", "shift", "none"] = "resized"
    scale: tuple[Rate, Rate] = (0.35, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    padding: CountFromZero = 4
    flip: bool = True
    colour: Rate = 0.0
    randaugment: CountFromZero = 0
    magnitude: NotNegative = 9.0
    erase: Rate = 0.0
    mean: tuple[float, ...] | None = None  # of each channel, 0 to 1; None: half, and a deviation of half
    std: tuple[float, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class MixConfig(Config):
    """How images of a batch are mixed with one another, and their labels with them.

    `mixup` and `cutmix` are the alphas of their Beta distributions, 0 for off; where several are on, each batch draws
    one of them. `patch_mixup` swaps single patches of `patch` pixels in a share drawn from Beta.
    """

    mixup: NotNegative = 0.0
    cutmix: NotNegative = 0.0
    patch_mixup: NotNegative = 0.0
    patch: CountFromZero = 4
    share: Rate = 1.0  # of the batches that are mixed at all
