"""The preprocessing of a model in one config: resizing, cropping, channels and normalisation."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.config import Config, Count, Positive
from vitrail.data.augment.colour import normalise
from vitrail.errors import ConfigError, InputError, Unsupported

Size = tuple[int, int]  # height, width
TALL = 4  # rows that would be resized over rows that are kept, from which the order of axes changes


@dataclass(frozen=True, kw_only=True)
class Preprocess(Config):
    """How pictures of any size become the input of a model.

    `resize` says how the picture gets the shape of `image_size`:

    - "window": the largest window of that shape around the centre is cut out and resized; `crop` is its share
    - "crop": the whole picture is resized until its shorter side is `image_size / crop`, then the centre is cut out,
      as timm, torchvision and most processors of Hugging Face do
    - "squash": both sides are resized to `image_size / crop`, whatever their ratio, then the centre is cut out
    - "pad": the longer side is resized to `image_size / crop`, and what is missing is filled with the mean

    `mean` and `std` are of pixels from 0 to 1, one number for each channel or one for all. With "bgr", channels are
    reversed before they are normalised. `like` says whose arithmetic "crop", "squash" and "pad" follow: "timm" gives
    the pixels of Pillow and torchvision, and a centre crop rounds half a pixel to even numbers; "hf" gives those of
    Hugging Face's processors, which round down.
    """

    image_size: tuple[Count, Count] = (224, 224)
    channels: Count = 3
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    crop: Positive = 1.0
    interpolation: Literal["bicubic", "bilinear", "nearest", "lanczos"] = "bicubic"
    resize: Literal["window", "crop", "squash", "pad"] = "window"
    like: Literal["timm", "hf"] = "timm"
    channel_order: Literal["rgb", "bgr"] = "rgb"

    def __post_init__(self) -> None:
        """Checks that mean and std fit the channels, and that the window is not larger than the picture."""
        super().__post_init__()
        for name in ("mean", "std"):
            values = getattr(self, name)
            if len(values) not in (1, self.channels):
                raise ConfigError(
                    f"{name} has {len(values)} numbers; images with {self.channels} channels need {self.channels}, "
                    "or one for all"
                )
            if not all(math.isfinite(value) for value in values) or (name == "std" and min(values) <= 0):
                raise ConfigError(
                    f"{name}={values} is not allowed: must be finite" + (" and above 0" if name == "std" else "")
                )
        if self.resize == "window" and self.crop > 1:
            raise ConfigError(f"crop={self.crop:g} is not allowed for resize=window: must be at most 1")

    def __str__(self) -> str:
        """Such as "224 x 224, crop 0.9, bicubic, mean 0.485 0.456 0.406, std 0.229 0.224 0.225"."""
        how = "crop" if self.resize == "window" else self.resize
        parts = [f"{self.image_size[0]} x {self.image_size[1]}", f"{how} {self.crop:.4g}", self.interpolation]
        parts += [f"{name} " + " ".join(f"{v:.4g}" for v in getattr(self, name)) for name in ("mean", "std")]
        return ", ".join(parts + (["BGR"] if self.channel_order == "bgr" else []))

    @property
    def fill(self) -> tuple[float, ...]:
        """The mean in RGB order, one number for each channel: the colour of margins."""
        return self.statistics[0][:: -1 if self.channel_order == "bgr" else 1]

    @property
    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and std with one number for each channel."""
        mean, std = (values * self.channels if len(values) == 1 else values for values in (self.mean, self.std))
        return mean, std

    def __call__(self, images: Tensor) -> Tensor:
        """Pictures of any size -> the input of the model: uint8 B C H W -> float32 B c *image_size."""
        return self.normalise(self.fit(images)[0])

    def normalise(self, images: Tensor) -> Tensor:
        """Fitted pixels from 0 to 255, normalised: B c H W -> float32 B c H W."""
        if images.ndim != 4 or images.shape[1] != self.channels:
            raise InputError(
                f"images have the shape {tuple(images.shape)}; expected B {self.channels} H W: use fit() first"
            )
        return self.scaled(images.float() / 255)

    def scaled(self, images: Tensor) -> Tensor:
        """Pixels from 0 to 1, normalised: B c H W -> B c H W."""
        return normalise(images.flip(1) if self.channel_order == "bgr" else images, *self.statistics)

    def fit(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Pictures at the size and with the channels of the model: uint8 B C H W -> uint8 B c *image_size, maps B 2 3.

        A map takes (x, y, 1) of an output pixel to x, y in the picture, in pixels, the first pixel's centre at 0.5.
        Grey becomes RGB by repetition, RGB becomes grey by luma (ITU-R 601).
        """
        images = self._with_channels(images)
        fitted = (self._window if self.resize == "window" else self._centred)(images)
        maps = self.maps(torch.tensor([images.shape[2:]])).to(images.device)
        return fitted.expand(-1, self.channels, -1, -1), maps.expand(len(images), 2, 3)

    def whole(self, images: Tensor, size: Size) -> Tensor:
        """Whole pictures resized to any size, with the channels of the model: uint8 B C H W -> uint8 B c *size."""
        return self.resized(self._with_channels(images), size).expand(-1, self.channels, -1, -1)

    def _with_channels(self, images: Tensor) -> Tensor:
        """Pictures with as many channels as the model takes, or with one, which is repeated later."""
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
            raise InputError(
                f"images are {images.dtype} of shape {tuple(images.shape)}; "
                "expected uint8, B C H W with 1 or 3 channels"
            )
        if self.channels not in (1, 3):
            raise InputError(f"the model takes {self.channels} channels; pictures have 1 or 3")
        return luma(images) if images.shape[1] > self.channels else images

    def maps(self, sizes: Tensor) -> Tensor:
        """The maps of `fit` for pictures of these heights and widths: M 2 -> M 2 3."""
        known: dict[tuple[int, int], list[list[float]]] = {}
        rows = []
        for height, width in sizes.tolist():
            if (height, width) not in known:
                scale_x, left, scale_y, top = self._placement(height, width)
                known[height, width] = [[scale_x, 0.0, left], [0.0, scale_y, top]]
            rows.append(known[height, width])
        return torch.tensor(rows)

    def resized(self, images: Tensor, size: Size) -> Tensor:
        """Pictures at another size, antialiased but for nearest; float (0 to 255) stays float, uint8 stays uint8."""
        if images.shape[2:] == size:
            return images
        if self.interpolation == "nearest":
            return F.interpolate(images, size=size, mode="nearest-exact")
        if images.dtype == torch.uint8 and images.device.type == "cpu":
            return self._antialiased(images, size)
        pixels = self._antialiased(images.float(), size).clamp(0, 255)
        return pixels if images.is_floating_point() else (pixels + 0.5).to(torch.uint8)

    def _antialiased(self, images: Tensor, size: Size) -> Tensor:
        try:
            return F.interpolate(images, size=size, mode=self.interpolation, antialias=True)
        except ValueError as error:
            if self.interpolation != "lanczos":
                raise
            raise Unsupported(
                f"interpolation=lanczos is not supported by torch {torch.__version__}; use torch 2.13 or newer, or "
                "interpolation=bicubic"
            ) from error

    def _placement(self, height: int, width: int) -> tuple[float, float, float, float]:
        """Pixels of the picture for each pixel of the output, and the first of them: across, then down."""
        rows, columns = self.image_size
        if self.resize == "window":
            top, left, tall, wide = self._cut(height, width)
            return wide / columns, left, tall / rows, top
        tall, wide = self._resized_size(height, width)
        scale_x, scale_y = width / wide, height / tall
        return scale_x, self._first(wide, columns) * scale_x, scale_y, self._first(tall, rows) * scale_y

    def _cut(self, height: int, width: int) -> tuple[int, int, int, int]:
        """The window that is cut out of a picture: top, left, height, width."""
        rows, columns = height, width
        if (height, width) != self.image_size:
            rows = min(height, max(1, round(width * self.image_size[0] / self.image_size[1])))
            columns = min(width, max(1, round(height * self.image_size[1] / self.image_size[0])))
        rows, columns = max(1, round(rows * self.crop)), max(1, round(columns * self.crop))
        return (height - rows) // 2, (width - columns) // 2, rows, columns

    def _window(self, images: Tensor) -> Tensor:
        """The largest window around the centre, or a share of it, resized; an image of that size is not touched."""
        # Cut before resizing: of a banner of 10 x 20,000 pixels no copy is blown up first.
        top, left, rows, columns = self._cut(images.shape[2], images.shape[3])
        return self.resized(images[:, :, top : top + rows, left : left + columns], self.image_size)

    def _centred(self, images: Tensor) -> Tensor:
        """The whole picture resized, then cut or padded around its centre."""
        (height, width), (rows, columns) = images.shape[2:], self.image_size
        tall, wide = self._resized_size(height, width)
        top, left = self._first(tall, rows), self._first(wide, columns)
        # Pillow keeps rounded pixels between its two passes. Floats differ from it by one level at most; torch's own
        # uint8 arithmetic, which Hugging Face uses, is five times as fast and differs by two in some pixels.
        pixels = images if self.like == "hf" or self.interpolation == "nearest" else images.float()
        # One axis after the other, with the cut between them: little is resized that is cut off. Rows are resized
        # first where this saves memory, and where only their number shrinks, as in Pillow 13.
        blown_up = tall > TALL * rows and width < columns
        lines = [(3, wide, left, columns), (2, tall, top, rows)]
        if blown_up or (self.like == "timm" and tall < height and wide > width):
            lines.reverse()
        for axis, length, first, count in lines:
            pixels = self._resized_line(pixels, axis, length, first, count)
        images = pixels if pixels.dtype == torch.uint8 else (pixels + 0.5).to(torch.uint8)
        margins = (max(-left, 0), max(left + columns - wide, 0), max(-top, 0), max(top + rows - tall, 0))
        return self._padded(images, margins) if any(margins) else images

    def _resized_size(self, height: int, width: int) -> Size:
        """The size of the whole picture before the centre is cut out."""
        rows, columns = (math.floor(side / self.crop) for side in self.image_size)
        if self.resize == "squash":
            return rows, columns
        if self.resize == "crop" and rows == columns:  # as torchvision: the longer side is rounded down
            short, long = min(height, width), max(height, width)
            longer = int(rows * long / short)
            return (longer, columns) if width <= height else (rows, longer)
        ratios = height / rows, width / columns
        ratio = min(ratios) if self.resize == "crop" else max(ratios)
        return max(1, round(height / ratio)), max(1, round(width / ratio))

    def _first(self, have: int, want: int) -> int:
        """The first pixel of a centre crop; negative where a margin is added."""
        if want > have:
            return -((want - have) // 2)
        return (have - want) // 2 if self.like == "hf" else round((have - want) / 2)

    def _resized_line(self, images: Tensor, axis: int, length: int, first: int, count: int) -> Tensor:
        """One axis resized to `length`, then the pixels from `first` on; the other axis stays."""
        size = (length, images.shape[3]) if axis == 2 else (images.shape[2], length)
        start, stop = max(first, 0), min(first + count, length)
        return self.resized(images, size).narrow(axis, start, stop - start)

    def _padded(self, images: Tensor, margins: tuple[int, int, int, int]) -> Tensor:
        """With margins left, right, above and below: the mean for "pad", otherwise black."""
        if self.resize != "pad":
            return F.pad(images, margins)
        levels = torch.tensor([min(max(round(255 * value), 0), 255) for value in self.fill], device=images.device)
        left, right, above, below = margins
        height, width = images.shape[2:]
        canvas = levels.to(torch.uint8)[None, :, None, None].repeat(
            len(images), 1, above + height + below, left + width + right
        )
        canvas[:, :, above : above + height, left : left + width] = images
        return canvas


def luma(images: Tensor) -> Tensor:
    """RGB to grey, rounded as Pillow does: uint8 B 3 H W -> uint8 B 1 H W."""
    weights = torch.tensor([19595, 38470, 7471], dtype=torch.int32, device=images.device).view(1, 3, 1, 1)
    return (((images.int() * weights).sum(dim=1, keepdim=True) + 0x8000) >> 16).to(torch.uint8)
