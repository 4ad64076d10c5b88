"""Maps resized by bilinear interpolation, in a form whose gradient is fast on a GPU."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def resized(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Bilinear, the edges of both maps in the same place: B D h w -> B D *size.

    The gradient of torch's operator adds numbers one by one; that of two matrix products does not. Where gradients are
    wanted on a GPU these are used. Their weights and first product are rounded as the maps are, those of 32 bits to
    TF32 where torch may.
    """
    height, width = size
    learns = maps.requires_grad and torch.is_grad_enabled() and not torch.compiler.is_compiling()
    if learns and maps.is_cuda:
        with torch.autocast("cuda", enabled=False):  # which may have the other type of 16 bits
            return by_products(maps, (height, width))
    return F.interpolate(maps, size=(height, width), mode="bilinear", align_corners=False)


def by_products(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """The same as one matrix for the rows and one for the columns; the result is in the memory layout channels_last."""
    count, dim, height, width = maps.shape
    rows, columns = axis(height, size[0], like=maps), axis(width, size[1], like=maps)  # H h and W w
    tall = rows @ maps.permute(0, 2, 3, 1).reshape(count, height, width * dim)  # B H wD
    wide = columns @ tall.view(count * size[0], width, dim)  # BH W D
    return wide.view(count, *size, dim).permute(0, 3, 1, 2)  # B D H W


def axis(size_in: int, size_out: int, *, like: Tensor) -> Tensor:
    """What each pixel of an axis gives to each pixel of the resized one: out in."""
    exact, device = torch.promote_types(like.dtype, torch.float32), like.device
    centres = (torch.arange(size_out, dtype=exact, device=device) + 0.5) * (size_in / size_out) - 0.5
    centres = centres.clamp(0, size_in - 1)  # beyond the edge: the pixel at the edge
    pixels = torch.arange(size_in, dtype=exact, device=device)
    return (1 - (centres[:, None] - pixels).abs()).clamp(min=0).to(like.dtype)
