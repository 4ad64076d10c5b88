"""What the shapes of tensors tell about a model, and what they do not."""

import math
from pathlib import Path

from vitrail.errors import CheckpointError
from vitrail.layers.patch import Grid
from vitrail.models.registry import presets
from vitrail.models.vit import ViTConfig


def square_grid(num_patches: int, path: Path) -> Grid:
    """The square grid of a position table; a rectangle cannot be told from the number of its patches."""
    side = math.isqrt(num_patches)
    if side * side != num_patches:
        raise CheckpointError(
            f"{path}: {num_patches} positions are no square, and no config beside the file says which rectangle they "
            f"are"
        )
    return side, side


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
            f"{path}: the shapes do not tell how many heads a width of {dim} has, and there is no config beside the "
            f"file; name the model, e.g. load(..., model='vit_base_patch16')"
        )
    return known.pop()
