"""What can be read from the shapes of tensors: grids and numbers of heads."""

import math
from pathlib import Path

from vitrail.errors import CheckpointError
from vitrail.layers.patch import Grid
from vitrail.models.registry import presets
from vitrail.models.vit import ViTConfig


def grid_of(num_patches: int, path: Path, *, said: Grid | None = None) -> Grid:
    """The grid of a position table: a square, or the rectangle that the caller's image size gives."""
    side = math.isqrt(num_patches)
    if side * side == num_patches:
        return side, side
    if said is not None and said[0] * said[1] == num_patches:
        return said
    given = "" if said is None else f"; the image size that was given has {said[0]} x {said[1]} patches"
    raise CheckpointError(
        f"{path}: {num_patches} positions are not a square, and no config.json gives the rectangle{given}. "
        "Pass image_size=(height, width) in pixels (--image-size 192x672)"
    )


def relative_grid(offsets: int, path: Path, *, said: Grid | None = None) -> Grid:
    """The grid whose pairs of patches have this many offsets, (2h - 1)(2w - 1)."""
    doubled = grid_of(offsets, path, said=None if said is None else (2 * said[0] - 1, 2 * said[1] - 1))
    return (doubled[0] + 1) // 2, (doubled[1] + 1) // 2


def patches_of(image_size: tuple[int, int] | None, step: tuple[int, int]) -> Grid | None:
    """How many patches an image has, of `step` pixels; None for no image."""
    return None if image_size is None else (image_size[0] // step[0], image_size[1] // step[1])


def name_the_model(example: str) -> str:
    """What to do where a file does not say which model it is of, in Python and on the command line."""
    return (
        f"name the model: load(..., model={example!r}), vitrail train --model {example} --from FILE, or "
        f"vitrail convert FILE FOLDER --model {example} and use that folder"
    )


def usual_heads(dim: int, path: Path, *, rotary: bool | None = None) -> int:
    """The number of heads that all named models of this width have, those with rotary positions or those without."""
    known = {
        config.num_heads
        for config, _ in presets().values()
        if isinstance(config, ViTConfig) and config.dim == dim
        if rotary is None or rotary == any(position.kind == "rope" for position in config.position)
    }
    if len(known) != 1:
        raise CheckpointError(
            f"{path}: the number of heads for a width of {dim} cannot be read from the shapes, and no "
            f"config.json gives it; {name_the_model('vit_base_patch16')}"
        )
    return known.pop()
