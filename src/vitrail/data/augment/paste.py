"""Mosaic and copy-paste: parts of other images of the batch put into an image, targets with them.

The images of a mosaic are those of its group of four in the batch; the last group may be smaller, and has some of them
twice. Batches that divide by four on every process give the same result on any number of them (training refuses others,
see `check_batch`). Every sample draws its own numbers.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from vitrail.data.augment.resample import Size, place
from vitrail.data.augment.zoom import ZOOM_DRAWS, tile_boxes
from vitrail.data.dataset import Targets
from vitrail.data.randomness import Stream
from vitrail.data.targets import Schema
from vitrail.errors import ConfigError

TILES = 4
CENTRE = (0.25, 0.75)  # of the image: where the tiles of a mosaic meet
OBJECT_DRAWS = 64

Pasted = tuple[Tensor, dict[str, Tensor]]  # images B C H W and targets


def mosaic(
    base: Pasted,
    stored: tuple[Tensor, Targets],
    stream: Stream,
    schema: Schema,
    *,
    steps: tuple[Tensor, Tensor],
    drawn: Tensor,
    flips: bool,
    zoom: tuple[float, float],
    fill: Tensor,
) -> Pasted:
    """Four images around a point for the samples `drawn` B, the others as they are (arXiv:2004.10934).

    `base` are images as they would be without it, and their targets; `stored` those that tiles are taken from.
    """
    (pixels, targets), (images, values) = base, stored
    size = (pixels.shape[2], pixels.shape[3])
    regions, corners = tiles(stream.uniform("mosaic.centre", 2), size)
    for tile in range(TILES):
        partner = partners(len(images), tile, images.device)
        draws = stream.uniform(f"mosaic.{tile}", ZOOM_DRAWS + 1)
        flip = draws[:, -1] < (0.5 if flips else 0.0)
        own = (steps[0][partner], steps[1][partner])
        whole = (images.shape[2], images.shape[3])
        boxes = tile_boxes(draws, whole, own, size, corners[:, tile], flip, zoom)
        region = regions[:, tile] & drawn[:, None, None]  # B H W
        shown = place(images[partner], boxes, size, flip=flip, fill=fill).clamp(0, 255)
        pixels = torch.where(region[:, None], shown, pixels)
        maps = boxes.maps(size, flip=flip)
        moved = {name: schema[name].move(one[partner], maps, size) for name, one in values.items() if name in schema}
        # What was there is covered by all tiles together, and a tile by none of the others.
        hidden = drawn[:, None, None].expand_as(region) if tile == 0 else region
        targets = _pasted(targets, moved, region, schema, hidden)
    return pixels, targets


def partners(count: int, tile: int, device: torch.device) -> Tensor:
    """The image that each of a batch takes for a tile: another one of its group of four for each tile, B."""
    own = torch.arange(count, device=device)
    first = own // TILES * TILES
    return first + ((own - first) ^ tile) % (count - first).clamp(max=TILES)


def check_batch(batch_size: int, processes: int) -> None:
    """ConfigError where groups of four would be split over processes, so that mosaics depend on their number."""
    step = TILES * processes
    if processes > 1 and batch_size % step:
        fits = max(step, round(batch_size / step) * step)
        raise ConfigError(
            f"batch_size {batch_size} is not divisible by {step}, as augment.mosaic needs: it joins groups of {TILES} "
            f"images on {processes} processes; the nearest that is: {fits}"
        )


def tiles(draws: Tensor, size: Size) -> tuple[Tensor, Tensor]:
    """The four parts around points from uniform numbers B 2: masks B 4 H W, and corners B 4 4 (x1 y1 x2 y2)."""
    height, width = size
    share = CENTRE[0] + (CENTRE[1] - CENTRE[0]) * draws
    x, y = (share[:, 0] * width).round(), (share[:, 1] * height).round()  # B
    zero, right, bottom = torch.zeros_like(x), torch.full_like(x, width), torch.full_like(y, height)
    rows = [(zero, zero, x, y), (x, zero, right, y), (zero, y, x, bottom), (x, y, right, bottom)]
    corners = torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)  # B 4 4
    columns, lines = torch.arange(width, device=x.device), torch.arange(height, device=x.device)
    across = (columns >= corners[:, :, 0:1]) & (columns < corners[:, :, 2:3])  # B 4 W
    down = (lines >= corners[:, :, 1:2]) & (lines < corners[:, :, 3:4])  # B 4 H
    return down[:, :, :, None] & across[:, :, None, :], corners


def copy_paste(base: Pasted, stream: Stream, schema: Schema, *, drawn: Tensor) -> Pasted:
    """Objects of the neighbour in the batch on the samples `drawn` B (arXiv:2012.07177).

    Without outlines an object is all that is in its box; of masks, whole classes are taken.
    """
    pixels, targets = base
    size = (pixels.shape[2], pixels.shape[3])
    partner = (torch.arange(len(pixels), device=pixels.device) ^ 1).clamp(max=len(pixels) - 1)
    other = {name: values[partner] for name, values in targets.items()}
    draws = stream.uniform("paste.objects", OBJECT_DRAWS)
    found = (schema[name].objects(values, draws, size) for name, values in other.items() if name in schema)
    chosen = next((one for one in found if one is not None), None)
    if chosen is None:
        return base
    region = chosen & drawn[:, None, None]
    return torch.where(region[:, None], pixels[partner], pixels), _pasted(targets, other, region, schema)


def _pasted(
    targets: Mapping[str, Tensor],
    other: Mapping[str, Tensor],
    region: Tensor,
    schema: Schema,
    hidden: Tensor | None = None,
) -> dict[str, Tensor]:
    return {
        name: schema[name].paste(values, other[name], region, hidden) if name in schema else values
        for name, values in targets.items()
    }
