"""Augmentation in batches on the device; each sample's randomness comes from (seed, epoch, its number) alone."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from vitrail.config import Config, Count, CountFromZero, NotNegative, Positive, Range, Rate
from vitrail.data.colour import channel_values, jitter, normalise
from vitrail.data.dataset import Batch
from vitrail.data.randaugment import randaugment
from vitrail.data.randomness import Stream
from vitrail.data.resample import BOX_DRAWS, Size, crop, random_boxes, resize, shift
from vitrail.errors import ConfigError, InputError

ERASED, ERASED_RATIO = (0.02, 1 / 3), (0.3, 3.3)  # share of the area and width over height (arXiv:1708.04896)


@dataclass(frozen=True, kw_only=True)
class AugmentConfig(Config):
    """What happens to a training image before the model sees it, in this order.

    `crop` "resized" takes a random part of the image (`scale` of its area, `ratio` of its sides), "shift" pads by
    `padding` pixels and takes a window of the original size, "none" resizes the whole. `colour` is the strength of
    brightness, contrast, saturation and hue; `randaugment` the number of operations of strength `magnitude` (of 10);
    `erase` the share of images that lose a box.
    """

    crop: Literal["resized", "shift", "none"] = "resized"
    scale: tuple[Rate, Rate] = (0.35, 1.0)
    ratio: tuple[Positive, Positive] = (3 / 4, 4 / 3)
    padding: CountFromZero = 4
    flip: bool = True
    colour: Rate = 0.0
    randaugment: CountFromZero = 0
    magnitude: Annotated[float, Range(0.0, 10.0)] = 9.0
    erase: Rate = 0.0
    mean: tuple[float, ...] | None = None  # of each channel, 0 to 1; None: half, and a deviation of half
    std: tuple[Positive, ...] | None = None

    def __post_init__(self) -> None:
        """Refuses ranges that end before they begin."""
        super().__post_init__()
        for name in ("scale", "ratio"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise ConfigError(f"{name} is {low:g} to {high:g}; it must be above 0, and its first number the less")


@dataclass(frozen=True, kw_only=True)
class MixConfig(Config):
    """How images of a batch are mixed with one another, and their labels with them.

    `mixup` and `cutmix` are the alphas of their Beta distributions, 0 for off; where several are on, each image draws
    one of them. `patch_mixup` takes single patches of `patch` pixels from the other image, in a share from Beta.
    """

    mixup: NotNegative = 0.0
    cutmix: NotNegative = 0.0
    patch_mixup: NotNegative = 0.0
    patch: Count = 4
    share: Rate = 1.0  # of the images that are mixed at all


class Prepare:
    """Images for evaluation: the whole of each, at the model's size, normalised; nothing is random."""

    def __init__(self, config: AugmentConfig, *, image_size: Size, channels: int) -> None:
        self.image_size, self.channels = image_size, channels
        self.mean = _per_channel("mean", config.mean, channels)
        self.std = _per_channel("std", config.std, channels)

    def __call__(self, images: Tensor) -> Tensor:
        """uint8 B C H W -> float32 B C *image_size."""
        self.check(images)
        return normalise(resize(images, self.image_size).clamp(0, 255) / 255, self.mean, self.std)

    def check(self, images: Tensor) -> None:
        """Refuses what is not a batch of uint8 images with the right channels."""
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != self.channels:
            raise InputError(
                f"images are {images.dtype} of shape {tuple(images.shape)}; "
                f"they must be torch.uint8, B {self.channels} H W"
            )


class Augment:
    """Training images: cropped, flipped, coloured, erased, normalised, as a config says."""

    def __init__(self, config: AugmentConfig, *, image_size: Size, channels: int, seed: int) -> None:
        self.config, self.seed = config, seed
        self.prepare = Prepare(config, image_size=image_size, channels=channels)

    def __call__(self, batch: Batch, epoch: int | Tensor) -> Batch:
        """uint8 B C H W -> float32 B C *image_size; labels and ids as they are."""
        config, prepare = self.config, self.prepare
        prepare.check(batch.images)
        stream = Stream(self.seed, epoch, batch.ids.to(batch.images.device))
        images = self._place(batch.images, stream) / 255
        if config.colour:
            images = jitter(images, stream.uniform("colour", 4), config.colour)
        if config.randaugment:
            draws = stream.uniform("randaugment", 2 * config.randaugment).unflatten(1, (-1, 2))  # B R 2
            images = randaugment(images, draws, config.magnitude, channel_values(prepare.mean, images.device))
        images = normalise(images, prepare.mean, prepare.std)
        if config.erase:
            images = self._erase(images, stream)
        return batch._replace(images=images)

    def _place(self, images: Tensor, stream: Stream) -> Tensor:
        """Cropped and flipped: uint8 B C H W -> float32 B C *image_size, 0 to 255."""
        config, size = self.config, self.prepare.image_size
        flip = stream.uniform("flip", 1)[:, 0] < (0.5 if config.flip else 0.0)  # B
        if config.crop == "resized":
            boxes = random_boxes(
                stream.uniform("crop", BOX_DRAWS), (images.shape[2], images.shape[3]), config.scale, config.ratio
            )
            return crop(images, boxes, size, flip=flip).clamp(0, 255)
        if images.shape[2:] != size:
            images = resize(images, size).clamp(0, 255)
        if config.crop == "shift":
            down, right = (stream.uniform("shift", 2) * (2 * config.padding + 1)).long().unbind(1)
            images = shift(images, down, right, config.padding)
        return (torch.where(flip[:, None, None, None], images.flip(3), images) if config.flip else images).float()

    def _erase(self, images: Tensor, stream: Stream) -> Tensor:
        """A box of some images set to the mean, which is zero by now (arXiv:1708.04896)."""
        draws = stream.uniform("erase", 1 + BOX_DRAWS)
        size = self.prepare.image_size
        boxes = random_boxes(draws[:, 1:], size, ERASED, ERASED_RATIO)
        erased = (draws[:, 0] < self.config.erase) & boxes.fits  # B
        return images.masked_fill(erased[:, None, None, None] & boxes.mask(size), 0.0)


def _per_channel(name: str, values: tuple[float, ...] | None, channels: int) -> tuple[float, ...]:
    """As many numbers as there are channels; half where none are given."""
    if values is None:
        return (0.5,) * channels
    if len(values) not in (1, channels):
        raise ConfigError(f"{name} has {len(values)} numbers; images with {channels} channels need {channels}, or one")
    return values if len(values) == channels else values * channels
