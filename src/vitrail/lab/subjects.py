"""What experiments look at: the packaged model with its sample images, and small ViTs with random weights."""

from typing import cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vitrail.layers.attention import Attention
from vitrail.layers.block import NormPlacement
from vitrail.layers.patch import Grid, LinearPatchConfig
from vitrail.layers.pool import MeanPoolConfig
from vitrail.layers.position import LearnedConfig, PositionConfig
from vitrail.models.vit import ViT, ViTConfig
from vitrail.packaged import samples
from vitrail.runs.trained import open_model

_SHIFT = 4  # pixels


def packaged_vit(device: torch.device) -> tuple[ViT, Tensor]:
    """The trained model of the package, and sample images 10 C H W as it takes them, moved and flipped at random."""
    trained = open_model("packaged").to(device)
    preprocess = trained.preprocess
    mean, std = (torch.tensor(values, device=device)[:, None, None] for values in (preprocess.mean, preprocess.std))
    pictures = [np.asarray(Image.open(path).convert("RGB").resize((32, 32))) for path in samples().values()]
    pixels = torch.tensor(np.stack(pictures), device=device).permute(0, 3, 1, 2).float() / 255  # B C H W
    shifts = torch.randint(-_SHIFT, _SHIFT + 1, (2,)).tolist()
    pixels = pixels.roll(shifts, dims=(2, 3))
    if torch.rand(()) < 0.5:
        pixels = pixels.flip(3)
    return cast("ViT", trained.backbone.eval()), (pixels - mean) / std


def random_vit(
    *, dim: int, depth: int, num_heads: int, image_size: int, patch: int, norm_placement: NormPlacement = "pre",
    num_classes: int = 0, channels: int = 3, position: PositionConfig | None = None,
) -> ViT:  # fmt: skip
    """A plain ViT with fresh weights and without a class token, so that all tokens are patches."""
    config = ViTConfig(
        image_size=(image_size, image_size),
        channels=channels,
        num_classes=num_classes,
        dim=dim,
        depth=depth,
        num_heads=num_heads,
        patch=LinearPatchConfig(size=(patch, patch)),
        position=(position or LearnedConfig(),),
        class_token=False,
        pool=MeanPoolConfig(),
        norm_placement=norm_placement,
    )
    return ViT(config).eval()


def natural_noise(count: int, size: int, *, channels: int = 3) -> Tensor:
    """Random images B C H W with the 1/f spectrum of photographs, of mean 0 and deviation 1."""
    frequency = (torch.fft.fftfreq(size)[:, None] ** 2 + torch.fft.fftfreq(size)[None] ** 2).sqrt()
    frequency[0, 0] = 1.0 / size
    spectrum = torch.fft.fft2(torch.randn(count, channels, size, size)) / frequency
    images = torch.fft.ifft2(spectrum).real
    return (images - images.mean(dim=(2, 3), keepdim=True)) / images.std(dim=(2, 3), keepdim=True)


@torch.no_grad()
def attention_inputs(model: ViT, images: Tensor) -> list[tuple[Attention, Tensor, Grid]]:
    """The attention layers of a ViT, each with the tokens B N D and the grid that it gets."""
    found: list[tuple[Attention, Tensor, Grid]] = []

    def keep(layer: nn.Module, inputs: tuple[Tensor, Grid]) -> None:
        found.append((cast("Attention", layer), *inputs))

    hooks = [block.get_submodule("attention").register_forward_pre_hook(keep) for block in model.blocks]
    model.features(images)
    for hook in hooks:
        hook.remove()
    return found
