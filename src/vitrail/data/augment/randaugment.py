"""RandAugment (arXiv:1909.13719) for whole batches: each sample has its own operations, without loops over samples.

Every operation is a row of amounts, 0 for samples that did not draw it. The geometric ones of all rounds become one
affine map, so an image is interpolated once. Those of single levels become one table of 256 levels per channel, from
its histogram. Colour and sharpness blend with a grey or a blurred image.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor

from vitrail.data.augment.colour import blend, grey, smooth
from vitrail.data.augment.resample import warp

LIMITS = {  # operation -> its amount at full strength, as in torchvision
    "identity": 0.0,
    "shear_x": 0.3,
    "shear_y": 0.3,
    "translate_x": 150 / 331,  # of the width
    "translate_y": 150 / 331,
    "rotate": math.radians(30),
    "brightness": 0.9,
    "colour": 0.9,
    "contrast": 0.9,
    "sharpness": 0.9,
    "posterize": 4.0,  # bits removed
    "solarize": 1.0,  # of the range, from the top
    "autocontrast": 1.0,
    "equalize": 1.0,
}
ONE_WAY = {"posterize", "solarize", "autocontrast", "equalize"}  # the others have a random sign
ALWAYS_FULL = {"autocontrast", "equalize"}
GEOMETRIC = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
LEVELS = 256


def randaugment(images: Tensor, draws: Tensor, magnitude: float, fill: Tensor) -> tuple[Tensor, Tensor]:
    """R operations by uniform numbers B R 2: float32 B C H W from 0 to 1, and maps B 2 3 from new pixels to old.

    Differs from torchvision in three ways: geometric operations come first, and are interpolated (bilinear) once;
    levels are rounded instead of truncated; pixels from outside of the image are `fill` (C 1 1) instead of black.
    """
    amounts = draw_amounts(draws, magnitude)
    images, maps = move(images, amounts, fill)
    for turn in range(draws.shape[1]):
        images = recolour(images, {name: amount[:, turn, None, None, None] for name, amount in amounts.items()})
    return images, maps


def draw_amounts(draws: Tensor, magnitude: float) -> dict[str, Tensor]:
    """Operation -> its amount for each sample and round, 0 if it was not drawn: each B R."""
    drawn = (draws[..., 0] * len(LIMITS)).long()  # B R
    up = torch.where(draws[..., 1] < 0.5, -1.0, 1.0)
    strength = magnitude / 10
    amounts = {}
    for number, (name, limit) in enumerate(LIMITS.items()):
        full = limit if name in ALWAYS_FULL else limit * strength
        signed = full if name in ONE_WAY else full * up
        amounts[name] = torch.where(drawn == number, signed, 0.0)
    return amounts


def move(images: Tensor, amounts: dict[str, Tensor], fill: Tensor) -> tuple[Tensor, Tensor]:
    """The geometric operations of all rounds as one map B 2 3; images without any stay exactly as they are."""
    height, width = images.shape[2:]
    maps = affine_maps(amounts, height, width)  # B R 3 3
    whole = maps[:, 0]
    for turn in range(1, maps.shape[1]):
        whole = (whole[:, :, :, None] * maps[:, turn, None]).sum(
            2
        )  # B 3 3: maps go from new to old, so the last round comes first
    moved = torch.stack([amounts[name] for name in GEOMETRIC]).ne(0).any(2).any(0)  # B
    return torch.where(moved[:, None, None, None], warp(images, whole[:, :2], fill), images), whole[:, :2]


def affine_maps(amounts: dict[str, Tensor], height: int, width: int) -> Tensor:
    """From output to input pixels, (x, y, 1) to (x, y, 1): B R 3 3; shear about a corner, rotation about the centre."""
    right, down = (amounts["translate_x"] * width).trunc(), (amounts["translate_y"] * height).trunc()
    cosine, sine = amounts["rotate"].cos(), amounts["rotate"].sin()
    middle_x, middle_y = width / 2, height / 2
    zero = torch.zeros_like(right)
    rows = (
        cosine, amounts["shear_x"] - sine, middle_x - cosine * middle_x + sine * middle_y - right,
        amounts["shear_y"] + sine, cosine, middle_y - sine * middle_x - cosine * middle_y - down,
        zero, zero, zero + 1,
    )  # fmt: skip
    return torch.stack(rows, dim=-1).unflatten(-1, (3, 3))


def recolour(images: Tensor, amounts: dict[str, Tensor]) -> Tensor:
    """The other operations of one round; amounts are B 1 1 1 by name."""
    levels = (images * (LEVELS - 1)).round().long().flatten(2)  # B C HW
    table = level_table(levels, {name: amount[..., 0] for name, amount in amounts.items()})  # B C 256
    images = table.gather(2, levels).view_as(images)
    sharpness = amounts["sharpness"]
    base = torch.where(sharpness != 0, smooth(images), grey(images))  # a round has one operation, so one base is enough
    return blend(images, base, amounts["colour"] + sharpness)


def level_table(levels: Tensor, amounts: dict[str, Tensor]) -> Tensor:
    """The new value of each level, 0 to 1: levels B C HW int64, amounts B 1 1 -> B C 256."""
    ramp = _ramp(levels.device)  # 256: 0 to 255
    # Integers: their sums do not depend on the order in which a GPU adds them.
    counts = torch.zeros(*levels.shape[:2], LEVELS, device=levels.device, dtype=torch.int32)
    counts.scatter_add_(2, levels, counts.new_ones(()).expand_as(levels))  # B C 256
    mean = grey((counts * ramp).sum(2, keepdim=True)) / levels.shape[2]  # B 1 1
    table = ramp + ramp * amounts["brightness"] + (ramp - mean) * amounts["contrast"]  # B 1 256
    bits_less = amounts["posterize"].round()
    step = torch.exp2(bits_less)
    table = torch.where(bits_less > 0, (ramp / step).floor() * step, table)
    bright = ramp >= (LEVELS - 1) * (1 - amounts["solarize"])
    table = torch.where((amounts["solarize"] > 0) & bright, LEVELS - 1 - ramp, table)
    table = torch.where(amounts["autocontrast"] > 0, stretched(counts, ramp), table)  # B C 256
    table = torch.where(amounts["equalize"] > 0, equalised(counts, ramp), table)
    return table.clamp(0, LEVELS - 1) / (LEVELS - 1)


def stretched(counts: Tensor, ramp: Tensor) -> Tensor:
    """Autocontrast: the lowest level that occurs becomes 0, the highest 255; B C 256."""
    occurs = counts > 0
    least = torch.where(occurs, ramp, LEVELS - 1.0).amin(2, keepdim=True)
    most = torch.where(occurs, ramp, 0.0).amax(2, keepdim=True)
    return torch.where(most > least, (ramp - least) * (LEVELS - 1) / (most - least).clamp(min=1), ramp)


def equalised(counts: Tensor, ramp: Tensor) -> Tensor:
    """Equalize: histogram equalisation with PIL's integer rule; B C 256."""
    sums = counts.cumsum(2)
    highest = torch.where(counts > 0, ramp, 0.0).argmax(2, keepdim=True)
    step = (sums[..., -1:] - counts.gather(2, highest)) // (LEVELS - 1)
    spread = (sums - counts + step // 2) // step.clamp(min=1)
    return torch.where(step > 0, spread.float(), ramp)


@lru_cache(maxsize=16)
def _ramp(device: torch.device) -> Tensor:
    return torch.arange(LEVELS, device=device, dtype=torch.float32)
