"""Pictures of a shape filled with a texture, each of which has a class: four shapes and four textures."""

import math

import torch
from torch import Tensor

CLASSES = 4  # shapes: disk, square, triangle, cross; textures: stripes, checks, dots, rings
_NOISE = 0.05


def shape_and_texture(shapes: Tensor | None, textures: Tensor | None, side: int, contrast: float = 1.0) -> Tensor:
    """Images B 1 H W from 0 to 1 on a grey ground; without textures shapes are white, without shapes textures fill all.

    Place, size and angle of the shape, and phase and angle of the texture, are random; so is the strength of both.
    The texture goes from 1 - 2 `contrast` to 1 times that strength: at 1 its mean is about the ground, at 0 the shape
    is white.
    """
    given = shapes if shapes is not None else textures
    assert given is not None  # noqa: S101  (callers give one of them)
    count, device = len(given), given.device
    steps = torch.linspace(-1, 1, side, device=device)
    y, x = (axis.expand(count, side, side) for axis in torch.meshgrid(steps, steps, indexing="ij"))
    inside = torch.ones(count, side, side, device=device)
    if shapes is not None:
        size = _between(count, 0.45, 0.65, device)
        u, v = _turned(x - _between(count, -0.3, 0.3, device), y - _between(count, -0.3, 0.3, device))
        inside = _shape(u / size, v / size, shapes)
    pattern = torch.ones_like(inside)
    if textures is not None:
        phase, other = (_between(count, 0, 2 * math.pi, device) for _ in range(2))
        u, v = _turned(x, y)
        pattern = 1 - contrast + contrast * _texture(u, v, phase, other, textures)
    strength = _between(count, 0.3, 0.5, device)
    images = 0.5 + strength * inside * pattern
    return (images + _NOISE * torch.randn_like(images)).clamp(0, 1)[:, None]


def _between(count: int, low: float, high: float, device: torch.device) -> Tensor:
    return low + (high - low) * torch.rand(count, 1, 1, device=device)


def _turned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    angle = 2 * math.pi * torch.rand(len(x), 1, 1, device=x.device)
    return x * angle.cos() - y * angle.sin(), x * angle.sin() + y * angle.cos()


def _shape(u: Tensor, v: Tensor, classes: Tensor) -> Tensor:
    """1 inside and 0 outside, B H W; the four have about the same area."""
    disk = u.square() + v.square() < 0.9**2
    square = torch.maximum(u.abs(), v.abs()) < 0.8
    triangle = (v > -0.7) & (v + 1.73 * u.abs() < 1.5)
    cross = (torch.minimum(u.abs(), v.abs()) < 0.36) & (torch.maximum(u.abs(), v.abs()) < 1.08)
    return _chosen([disk.float(), square.float(), triangle.float(), cross.float()], classes)


def _texture(u: Tensor, v: Tensor, phase: Tensor, other: Tensor, classes: Tensor) -> Tensor:
    """-1 to 1, B H W, with about four waves across the picture."""
    waves = 4 * math.pi
    across, down = torch.sin(waves * u + phase), torch.sin(waves * v + other)
    stripes = across.sign()
    checks = across.sign() * down.sign()
    dots = 2 * ((across > 0.3) & (down > 0.3)).float() - 1
    rings = torch.sin(waves * (u.square() + v.square() + 1e-6).sqrt() + phase).sign()
    return _chosen([stripes, checks, dots, rings], classes)


def _chosen(kinds: list[Tensor], classes: Tensor) -> Tensor:
    return torch.stack(kinds)[classes, torch.arange(len(classes), device=classes.device)]
