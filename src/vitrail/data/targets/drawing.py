"""Truth drawn on pictures: boxes with names, coloured regions, distances."""

import colorsys
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

_GOLDEN = 0.61803398875  # hues that follow one another are far apart
_DISTINCT = (  # colours of the first classes, told apart on a picture; after these, hues follow one another
    (230, 120, 20), (40, 70, 225), (40, 175, 60), (225, 30, 60), (60, 205, 240), (160, 50, 190), (250, 220, 40),
    (240, 80, 215), (10, 120, 120), (150, 85, 30), (185, 240, 70), (245, 170, 190), (130, 10, 25), (195, 170, 250),
    (235, 235, 215), (20, 20, 115),
)  # fmt: skip
_GLOW = ((0.19, 0.07, 0.23), (0.11, 0.45, 0.87), (0.10, 0.89, 0.71), (0.96, 0.87, 0.24), (0.86, 0.22, 0.04))
_OVERLAY = 0.55  # opacity of regions
_NAMED = 0.005  # the least share of the pixels of a class whose name is written


@lru_cache(maxsize=1024)
def class_colour(number: int) -> tuple[int, int, int]:
    """The colour of a class, far from those of others."""
    if number < len(_DISTINCT):
        return _DISTINCT[number]
    hue, level = (0.08 + number * _GOLDEN) % 1, (0.95, 0.75)[number % 2]
    red, green, blue = colorsys.hsv_to_rgb(hue, 0.85, level)
    return round(255 * red), round(255 * green), round(255 * blue)


def _is_light(colour: tuple[int, int, int]) -> bool:
    red, green, blue = colour
    return 299 * red + 587 * green + 114 * blue > 128_000


def draw_boxes(
    image: Tensor, boxes: Tensor, names: Sequence[str], colours: Sequence[tuple[int, int, int]], *,
    numbered: bool = False,
) -> Tensor:  # fmt: skip
    """Outlines of boxes M 4 with their names, where these have room: uint8 C H W -> the same.

    `numbered` writes their numbers before the names, or alone where there is no room for both.
    """
    picture = Image.fromarray(as_rgb(image).permute(1, 2, 0).contiguous().numpy())
    pen = ImageDraw.Draw(picture)
    width = max(1, round(max(picture.size) / 320))
    labels = [(f"{index}: {name}", str(index)) if numbered else (name,) for index, name in enumerate(names)]
    for (x1, y1, x2, y2), some, colour in zip(boxes.tolist(), labels, colours, strict=True):
        left, top, right, bottom = round(x1), round(y1), max(round(x2) - 1, round(x1)), max(round(y2) - 1, round(y1))
        pen.rectangle((left, top, right, bottom), outline=colour, width=width)
        fitting = (name for name in some if pen.textlength(name) + 4 <= right - left and bottom - top >= 14)
        if name := next(fitting, ""):
            _label(pen, left, top, name, colour)
    drawn = torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()
    return drawn if len(image) == 3 else drawn[: len(image)]


def name_classes(image: Tensor, classes: Tensor, names: Sequence[str]) -> Tensor:
    """The names of classes H W in the middle of their pixels, the largest first, where there is room: uint8 3 H W."""
    picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    pen, taken = ImageDraw.Draw(picture), list[tuple[int, int, int, int]]()
    counts = torch.bincount(classes.flatten().long(), minlength=len(names))[: len(names)]
    for number in counts.argsort(descending=True).tolist():
        if counts[number] < _NAMED * classes.numel():
            break
        rows, columns = (classes == number).nonzero(as_tuple=True)
        nearest = ((rows - rows.median()).square() + (columns - columns.median()).square()).argmin()
        wide = round(pen.textlength(names[number])) + 4
        left = min(max(int(columns[nearest]) - wide // 2, 0), picture.width - wide)
        top = min(max(int(rows[nearest]) - 6, 0), picture.height - 12)
        box = (left, top, left + wide, top + 12)
        if left < 0 or top < 0 or any(_overlap(box, other) for other in taken):
            continue
        taken.append(box)
        _label(pen, left, top, names[number], class_colour(number))
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()


def _overlap(one: tuple[int, int, int, int], other: tuple[int, int, int, int]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _label(pen: ImageDraw.ImageDraw, left: int, top: int, name: str, colour: tuple[int, int, int]) -> None:
    pen.rectangle((left, top, left + pen.textlength(name) + 4, top + 11), fill=colour)
    pen.text((left + 2, top), name, fill=(0, 0, 0) if _is_light(colour) else (255, 255, 255))


def draw_classes(image: Tensor, classes: Tensor, ignore: int) -> Tensor:
    """Each pixel tinted by its class H W; ignored pixels stay as they are: uint8 C H W -> the same."""
    colours = torch.tensor([class_colour(number) for number in range(ignore + 1)], dtype=torch.float32)  # K 3
    tint = colours[classes.long()].permute(2, 0, 1)  # 3 H W
    return _mixed(image, tint, classes != ignore)


def draw_depth(image: Tensor, depth: Tensor, like: Tensor | None = None) -> Tensor:
    """Near pixels warm, far pixels dark blue, on a scale of logarithms; unknown ones stay: uint8 C H W -> the same.

    The scale reaches from the nearest to the farthest distance of `like`, by default of the map itself.
    """
    known, like = depth > 0, depth if like is None else like
    if not bool(known.any()) or not bool((like > 0).any()):
        return image
    near, far = like[like > 0].log().min(), like[like > 0].log().max()
    share = (far - depth.clamp(min=1e-6).log()) / (far - near).clamp(min=1e-6)
    return _mixed(image, _glow(share), known)


def draw_share(image: Tensor, share: Tensor, known: Tensor) -> Tensor:
    """Shares H W, such as errors, from dark blue for 0 to warm for 1, where they are known: uint8 C H W -> the same."""
    return _mixed(image, _glow(share), known)


def _glow(share: Tensor) -> Tensor:
    """The colours of shares H W: 3 H W, 0 to 255."""
    position = share.clamp(0, 1) * (len(_GLOW) - 1)
    step = position.long().clamp(max=len(_GLOW) - 2)
    ramp, part = torch.tensor(_GLOW), (position - step)[..., None]
    return 255 * (ramp[step] * (1 - part) + ramp[step + 1] * part).permute(2, 0, 1)  # 3 H W


def legend(names: Sequence[str], *, width: int = 480) -> Tensor:
    """Names beside the colours of their classes, in lines of at most a width: uint8 3 H W."""
    font = ImageFont.load_default(14)
    places, left, top = [], 0, 0
    for name in names:
        wide = 44 + round(font.getlength(name))
        if left and left + wide > width:
            left, top = 0, top + 24
        places.append((left, top))
        left += wide
    picture = Image.new("RGB", (width, top + 26), (255, 255, 255))
    pen = ImageDraw.Draw(picture)
    for number, (name, (left, top)) in enumerate(zip(names, places, strict=True)):
        pen.rectangle((left + 4, top + 4, left + 22, top + 20), fill=class_colour(number))
        pen.text((left + 28, top + 3), name, fill=(20, 20, 20), font=font)
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()


def as_rgb(image: Tensor) -> Tensor:
    """Grey repeated: C H W -> 3 H W."""
    return image.expand(3, -1, -1) if len(image) == 1 else image


def _mixed(image: Tensor, tint: Tensor, where: Tensor) -> Tensor:
    base = as_rgb(image).float()
    mixed = torch.where(where, _OVERLAY * tint + (1 - _OVERLAY) * base, base).round().to(torch.uint8)
    return mixed if len(image) == 3 else mixed[: len(image)]
