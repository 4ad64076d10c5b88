"""Images with a part hidden, moved, or reduced to edges."""

import torch
import torch.nn.functional as F
from torch import Tensor


def occlude(images: Tensor, share: float, *, cell: int = 4) -> Tensor:
    """B C H W with a share of the cells of `cell` pixels set to the mean of all images; the grid starts anywhere."""
    count, _, height, width = images.shape
    rows, columns = -(-height // cell) + 1, -(-width // cell) + 1
    hidden = round(share * rows * columns)
    order = torch.rand(count, rows * columns, device=images.device).argsort(dim=1)
    mask = (order < hidden).view(count, 1, rows, columns).float()  # B 1 h w
    pixels = mask.repeat_interleave(cell, dim=2).repeat_interleave(cell, dim=3)
    top, left = torch.randint(cell, (2,)).tolist()
    pixels = pixels[:, :, top : top + height, left : left + width]
    return images * (1 - pixels) + images.mean() * pixels


def shift(images: Tensor, pixels: int) -> Tensor:
    """B C H W moved by a number of pixels, each image in one of the four directions; its border is repeated."""
    if not pixels:
        return images
    height, width = images.shape[2:]
    padded = F.pad(images, (pixels, pixels, pixels, pixels), mode="replicate")
    ways = [(0, pixels), (2 * pixels, pixels), (pixels, 0), (pixels, 2 * pixels)]
    moved = torch.stack([padded[:, :, top : top + height, left : left + width] for top, left in ways])  # 4 B C H W
    chosen = torch.randint(4, (len(images),), device=images.device)
    return moved[chosen, torch.arange(len(images), device=images.device)]


def sketch(images: Tensor) -> Tensor:
    """The length of the gradient of the brightness (Sobel), with the largest of each image at 1: B C H W."""
    grey = images.mean(dim=1, keepdim=True)  # B 1 H W
    across = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]], device=images.device)
    kernels = torch.stack([across, across.T])[:, None]  # 2 1 3 3
    edges = F.conv2d(F.pad(grey, (1, 1, 1, 1), mode="replicate"), kernels).square().sum(dim=1, keepdim=True).sqrt()
    largest = edges.amax(dim=(2, 3), keepdim=True).clamp_min(1e-6)
    return (edges / largest).expand_as(images)
