"""Small models that experiments train: a ViT and a CNN for the same images, with what each costs."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vitrail.lab.subjects import random_vit
from vitrail.layers.conv import ConvNorm, ResidualBlock
from vitrail.layers.position import LearnedConfig, SinCos2DConfig
from vitrail.models.initialise import initialise_convolutions
from vitrail.models.vit import ViT


class Classifier(nn.Module):
    """A model behind the scaling of pixels: images B C H W from 0 to 1 -> logits B K."""

    def __init__(self, body: nn.Module, mean: float, std: float) -> None:
        super().__init__()
        self.body, self.mean, self.std = body, mean, std

    def forward(self, images: Tensor) -> Tensor:
        """B C H W -> B K."""
        logits: Tensor = self.body((images - self.mean) / self.std)
        return logits


def small_cnn(widths: Sequence[int], strides: Sequence[int], *, channels: int, num_classes: int) -> nn.Sequential:
    """A small ResNet: a 3 x 3 stem with the first stride, a residual block for each further one, mean, linear head."""
    stem = ConvNorm(channels, widths[0], 3, stride=strides[0], activation=nn.ReLU())
    inputs = (widths[0], *widths[:-1])
    blocks = [
        ResidualBlock(before, dim, bottleneck=False, stride=stride, gain=0.0)
        for before, dim, stride in zip(inputs, widths, strides[1:], strict=True)
    ]
    model = nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], num_classes))
    initialise_convolutions(model)
    return model


def small_vit(
    *, dim: int, depth: int, patch: int, image_size: int, channels: int, num_classes: int,
    position: Literal["learned", "sincos2d"] = "learned",
) -> ViT:  # fmt: skip
    """A plain ViT with heads of width 16 and the mean of all tokens; `position` is "learned" or "sincos2d"."""
    model = random_vit(
        dim=dim, depth=depth, num_heads=max(dim // 16, 1), image_size=image_size, patch=patch,
        num_classes=num_classes, channels=channels,
        position=SinCos2DConfig(theta=100.0) if position == "sincos2d" else LearnedConfig(),
    )  # fmt: skip
    return model.train()


def parameters(model: nn.Module) -> int:
    """The number of parameters."""
    return sum(one.numel() for one in model.parameters())


@torch.no_grad()
def macs(model: nn.Module, shape: Sequence[int]) -> int:
    """Multiply-accumulates of the forward pass of one image C H W."""
    was, device = model.training, next(model.parameters()).device
    model.eval()
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(torch.zeros(1, *shape, device=device))
    model.train(was)
    return int(counter.get_total_flops()) // 2
