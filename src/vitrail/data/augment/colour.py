"""Colour operations: jitter, blur, normalisation; images are float32 B C H W from 0 to 1, C = 1 or 3."""

from functools import lru_cache

import torch
from torch import Tensor

RED, GREEN, BLUE = 0.2989, 0.587, 0.114  # torchvision's weights of luma
HUE = 0.25  # of the circle, at strength 1; the others range from 0 to 2


def jitter(images: Tensor, draws: Tensor, strength: float) -> Tensor:
    """Brightness, contrast, saturation and hue by uniform numbers B 4, as torchvision's ColorJitter on floats.

    Always in this order, whereas torchvision draws one; hue turns by at most `strength` / 4 of the circle.
    """
    around = (2 * draws - 1) * strength
    brightness, contrast, saturation, hue = (around[:, index, None, None, None] for index in range(4))
    images = (images * (1 + brightness)).clamp(0, 1)
    images = blend(images, grey(images).mean(dim=(1, 2, 3), keepdim=True), contrast)
    if images.shape[1] == 1:
        return images
    images = blend(images, grey(images), saturation)
    return turn_hue(images, hue[:, 0] * HUE)


def blend(images: Tensor, base: Tensor, amount: Tensor) -> Tensor:
    """Moves images away from the base by `amount` of the difference; towards it if the amount is negative."""
    return (images + (images - base) * amount).clamp(0, 1)


def grey(images: Tensor) -> Tensor:
    """Luma: B C H W -> B 1 H W."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.split(1, dim=1)
    return RED * red + GREEN * green + BLUE * blue


def smooth(images: Tensor) -> Tensor:
    """A 3 x 3 blur with a weight of 5 in the centre; edge pixels stay: B C H W."""
    if min(images.shape[2:]) < 3:
        return images
    # Sums of slices: the same on every device, unlike a convolution, and fast on a CPU.
    rows = images[..., :-2, :] + images[..., 1:-1, :] + images[..., 2:, :]
    around = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    smoothed = images.clone()
    smoothed[..., 1:-1, 1:-1] = (around + 4 * images[..., 1:-1, 1:-1]) / 13
    return smoothed


def turn_hue(images: Tensor, turn: Tensor) -> Tensor:
    """Rotates the hue by `turn` circles, B 1 1; value and saturation stay (HSV): B 3 H W."""
    red, green, blue = images.unbind(1)  # B H W
    most, least = images.amax(1), images.amin(1)
    chroma = most - least
    divisor = torch.where(chroma == 0, 1.0, chroma)
    sixth = torch.where(most == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor)
    sixth = torch.where(most == red, (green - blue) / divisor, sixth) + 6 * turn
    # Around the circle, each channel rises for a sixth, is high for two, falls for one, and is low for two.
    phases = [torch.remainder(sixth + corner, 6) for corner in (5, 3, 1)]
    return torch.stack([most - chroma * torch.minimum(phase, 4 - phase).clamp(0, 1) for phase in phases], dim=1)


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Subtracts the mean and divides by the standard deviation of each channel."""
    return (images - channel_values(mean, images.device)) / channel_values(std, images.device)


@lru_cache(maxsize=64)
def channel_values(values: tuple[float, ...], device: torch.device) -> Tensor:
    """One number per channel: C 1 1. Cached, since copying to a GPU would synchronise."""
    return torch.tensor(values, device=device)[:, None, None]
