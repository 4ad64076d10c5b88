"""Augmentation of batches on the device; the randomness of a sample depends only on (seed, epoch, its index)."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from vitrail.config import Config, Count, CountFromZero, NotNegative, Positive, Range, Rate
from vitrail.data.augment.colour import channel_values, jitter
from vitrail.data.augment.paste import Pasted, copy_paste, mosaic
from vitrail.data.augment.randaugment import randaugment
from vitrail.data.augment.resample import (
    BOX_DRAWS,
    compose,
    crop,
    place,
    random_boxes,
    rotations,
    shift,
    shifted,
    upside_down,
    warp,
    whole_boxes,
    whole_maps,
)
from vitrail.data.augment.zoom import ZOOM_DRAWS, pixel_steps, zoom_boxes
from vitrail.data.dataset import Batch, Targets
from vitrail.data.preprocess import Preprocess
from vitrail.data.randomness import Stream
from vitrail.data.targets import Schema
from vitrail.errors import ConfigError, InputError

ERASED, ERASED_RATIO = (0.02, 1 / 3), (0.3, 3.3)  # share of the area and width over height (arXiv:1708.04896)


@dataclass(frozen=True, kw_only=True)
class AugmentConfig(Config):
    """How training images are augmented, in this order.

    `crop` "resized" takes a random part of the image (`scale` of its area, `ratio` of its sides), "shift" pads by
    `padding` pixels and takes a window of the original size, "none" resizes the whole, "jitter" shows the image `zoom`
    times as large as evaluation does, at a random position. `mosaic` is the share of images that are put together of
    four, each at its own `zoom`; `copy_paste` the share that gets objects of another image; the last `plain_epochs` of
    training have neither. `flip_vertical` turns half of the images upside down: for pictures without an up and down,
    such as those of a microscope or from above. `rotate` is the largest angle in degrees. `colour` is the strength of
    brightness, contrast, saturation and hue; `randaugment` the number of operations of strength `magnitude` (of 10);
    `erase` the share of images in which a box is erased.
    """

    crop: Literal["resized", "shift", "none", "jitter"] = "resized"
    scale: tuple[Rate, Rate] = (0.35, 1.0)
    ratio: tuple[Positive, Positive] = (3 / 4, 4 / 3)
    padding: CountFromZero = 4
    zoom: tuple[Positive, Positive] = (0.5, 2.0)
    flip: bool = True
    flip_vertical: bool = False
    mosaic: Rate = 0.0
    copy_paste: Rate = 0.0
    plain_epochs: CountFromZero = 0
    rotate: Annotated[float, Range(0.0, 180.0)] = 0.0
    colour: Rate = 0.0
    randaugment: CountFromZero = 0
    magnitude: Annotated[float, Range(0.0, 10.0)] = 9.0
    erase: Rate = 0.0

    def __post_init__(self) -> None:
        """Checks that ranges are positive and ordered."""
        super().__post_init__()
        for name in ("scale", "ratio", "zoom"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise ConfigError(
                    f"{name}={low:g},{high:g} is not allowed: both must be above 0, and min must not exceed max"
                )

    @property
    def crops(self) -> bool:
        """Whether images are cropped at random, so that they are stored whole and a little larger."""
        return self.crop in ("resized", "jitter")

    @property
    def pastes(self) -> bool:
        """Whether images get parts of others."""
        return self.mosaic > 0 or self.copy_paste > 0


@dataclass(frozen=True, kw_only=True)
class MixConfig(Config):
    """How images of a batch, and their targets, are mixed with one another.

    `mixup` and `cutmix` are the alphas of their Beta distributions, 0 for off; if several are on, each image draws one
    of them. `patch_mixup` takes single patches of `patch` pixels from the other image, in a share from Beta.
    """

    mixup: NotNegative = 0.0
    cutmix: NotNegative = 0.0
    patch_mixup: NotNegative = 0.0
    patch: Count = 4
    share: Rate = 1.0  # of images that are mixed


class Augment:
    """Crops, flips, recolours, erases and normalises training images by a config; targets move with the pixels.

    `aspects` holds, by sample index, how much wider an image is than it is stored; None if shapes were kept. `epochs`
    are those of the whole training, of which the last may be plain.
    """

    def __init__(
        self,
        config: AugmentConfig,
        preprocess: Preprocess,
        *,
        seed: int,
        schema: Schema | None = None,
        aspects: Tensor | None = None,
        epochs: int | None = None,
    ) -> None:
        self.config, self.preprocess, self.seed = config, preprocess, seed
        self.schema, self.aspects, self.epochs = schema or {}, aspects, epochs

    def __call__(self, batch: Batch, epoch: int | Tensor) -> Batch:
        """uint8 B C H W -> float32 B C *image_size, targets moved."""
        if not self.config.pastes:
            images, maps = self.images(batch, epoch)
            return batch._replace(images=images, targets=self._moved(batch.targets, maps))
        stream = self._stream(batch, epoch)
        placed, maps = self._crop_and_flip(batch, stream)
        pixels, targets = self._paste((placed, self._moved(batch.targets, maps)), batch, stream, epoch)
        images, maps = self._recolour(pixels, whole_maps(maps), stream)
        moves = self.config.randaugment or self.config.rotate or self.config.flip_vertical
        return batch._replace(images=images, targets=self._moved(targets, maps) if moves else targets)

    def images(self, batch: Batch, epoch: int | Tensor) -> tuple[Tensor, Tensor]:
        """The images, and maps B 2 3 from their pixels to those of the stored images; without mosaic and copy-paste."""
        stream = self._stream(batch, epoch)
        return self._recolour(*self._crop_and_flip(batch, stream), stream)

    def _stream(self, batch: Batch, epoch: int | Tensor) -> Stream:
        channels = self.preprocess.channels
        if batch.images.dtype != torch.uint8 or batch.images.ndim != 4 or batch.images.shape[1] != channels:
            raise InputError(
                f"images are {batch.images.dtype} of shape {tuple(batch.images.shape)}; expected torch.uint8, "
                f"B {channels} H W"
            )
        return Stream(self.seed, epoch, batch.ids.to(batch.images.device))

    def _moved(self, targets: Targets, maps: Tensor) -> dict[str, Tensor]:
        size = self.preprocess.image_size
        return {
            name: self.schema[name].move(values, maps, size) if name in self.schema else values
            for name, values in targets.items()
        }

    def _paste(self, base: Pasted, batch: Batch, stream: Stream, epoch: int | Tensor) -> Pasted:
        """Images 0 to 255 and targets with mosaic and copy-paste."""
        config, images = self.config, batch.images
        draws = stream.uniform("paste", 2)
        if self.epochs is not None and config.plain_epochs:
            draws = draws + (epoch >= self.epochs - config.plain_epochs)  # 1 or more: not drawn
        if config.mosaic:
            base = mosaic(
                base, (images, batch.targets), stream, self.schema, steps=self._steps(batch), flips=config.flip,
                drawn=draws[:, 0] < config.mosaic, zoom=config.zoom, fill=self._fill(images.device),
            )  # fmt: skip
        if config.copy_paste:
            base = copy_paste(base, stream, self.schema, drawn=draws[:, 1] < config.copy_paste)
        return base

    def _steps(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Stored pixels for each pixel of the output, across and down: B each."""
        images, device = batch.images, batch.images.device
        aspect = torch.ones(len(images), device=device) if self.aspects is None else self._aspect(batch)
        stored = (images.shape[2], images.shape[3])
        return pixel_steps(stored, self.preprocess.image_size, aspect, self.preprocess.resize)

    def _fill(self, device: torch.device) -> Tensor:
        """The colour of what is outside of images, 0 to 255: C 1 1."""
        return 255 * channel_values(self.preprocess.fill, device)

    def _recolour(self, pixels: Tensor, maps: Tensor, stream: Stream) -> tuple[Tensor, Tensor]:
        """Pixels from 0 to 255, recoloured, turned and normalised; and maps with what moved them."""
        config, images = self.config, pixels / 255
        if config.colour:
            images = jitter(images, stream.uniform("colour", 4), config.colour)
        fill = channel_values(self.preprocess.fill, images.device)
        if config.flip_vertical:
            drawn = stream.uniform("flip_vertical", 1)[:, 0] < 0.5  # B
            images = torch.where(drawn[:, None, None, None], images.flip(2), images)
            maps = compose(maps, upside_down(drawn, images.shape[2]))
        if config.rotate:
            angles = config.rotate * (2 * stream.uniform("rotate", 1)[:, 0] - 1)
            turned = rotations(angles, self.preprocess.image_size)
            images, maps = warp(images, turned, fill), compose(maps, turned)
        if config.randaugment:
            draws = stream.uniform("randaugment", 2 * config.randaugment).unflatten(1, (-1, 2))  # B R 2
            images, moved = randaugment(images, draws, config.magnitude, fill)
            maps = compose(maps, moved)
        images = self.preprocess.scaled(images)
        if config.erase:
            images = self._erase(images, stream)
        return images, maps

    def _crop_and_flip(self, batch: Batch, stream: Stream) -> tuple[Tensor, Tensor]:
        """uint8 B C H W -> float32 B C *image_size, 0 to 255, and maps B 2 3."""
        config, size, images = self.config, self.preprocess.image_size, batch.images
        flip = stream.uniform("flip", 1)[:, 0] < (0.5 if config.flip else 0.0)  # B
        stored = (images.shape[2], images.shape[3])
        if config.crop == "resized":
            aspect = None if self.aspects is None else self._aspect(batch)
            boxes = random_boxes(stream.uniform("crop", BOX_DRAWS), stored, config.scale, config.ratio, aspect)
            return crop(images, boxes, size, flip=flip).clamp(0, 255), boxes.maps(size, flip=flip)
        if config.crop == "jitter":
            draws = stream.uniform("zoom", ZOOM_DRAWS)
            boxes = zoom_boxes(draws, stored, self._steps(batch), size, config.zoom)
            pixels = place(images, boxes, size, flip=flip, fill=self._fill(images.device))
            return pixels.clamp(0, 255), boxes.maps(size, flip=flip)
        boxes = whole_boxes(flip, stored)
        maps = boxes.maps(size, flip=flip)
        images = self.preprocess.resized(images, size)  # whole grey levels, as in evaluation
        if config.crop == "shift":
            down, right = (stream.uniform("shift", 2) * (2 * config.padding + 1)).long().unbind(1)
            images = shift(images, down, right, config.padding)
            maps = shifted(maps, down - config.padding, right - config.padding, flip)
        return (torch.where(flip[:, None, None, None], images.flip(3), images) if config.flip else images).float(), maps

    def _aspect(self, batch: Batch) -> Tensor:
        assert self.aspects is not None  # noqa: S101  (checked by the caller)
        if self.aspects.device != batch.images.device:
            self.aspects = self.aspects.to(batch.images.device)
        return self.aspects[batch.ids.to(batch.images.device) % len(self.aspects)]  # an image may come several times

    def _erase(self, images: Tensor, stream: Stream) -> Tensor:
        """Sets a box of some images to the mean, which is 0 after normalisation (arXiv:1708.04896)."""
        draws = stream.uniform("erase", 1 + BOX_DRAWS)
        size = self.preprocess.image_size
        boxes = random_boxes(draws[:, 1:], size, ERASED, ERASED_RATIO)
        erased = (draws[:, 0] < self.config.erase) & boxes.fits  # B
        return images.masked_fill(erased[:, None, None, None] & boxes.mask(size), 0.0)
