"""Parity case of DAT, which no peer has: the model with its deformable attention in loops that read the paper."""

import functools
from pathlib import Path

import torch
from support.deformable_loops import by_hand
from torch import Tensor, nn

import vitrail
from parity.compare import Case, ours, randomise
from vitrail.layers.attention import DeformableAttention

SMALL = {"dims": (8, 8, 16, 16), "depths": (2, 2, 2, 2), "num_heads": (1, 2, 4, 4), "group_heads": 2, "window": (4, 4)}


def in_loops(layer: DeformableAttention, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    """Each image point by point: B N D -> B N D."""
    return torch.stack([by_hand(layer, image, grid) for image in tokens])


def make() -> nn.Module:
    """A small DAT; the loops stand in for the forward passes of its deformable layers, whose weights stay."""
    model = randomise(vitrail.create("dat_tiny", image_size=(64, 96), num_classes=5, **SMALL))
    for module in model.modules():
        if isinstance(module, DeformableAttention):
            module.forward = functools.partial(in_loops, module)
    return model


def save(model: nn.Module, folder: Path) -> None:
    vitrail.save(model, folder)


CASES = [Case("dat_tiny, deformable attention in loops", "loops", make, save, ours, (64, 96))]
