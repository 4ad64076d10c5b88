"""Parity cases of ConvNeXts."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from support.peers import torchvision
from torch import Tensor, nn
from torchvision.models.convnext import CNBlockConfig

from parity.compare import Case, Outputs, hint, randomise
from parity.families import from_hf, from_timm

DIMS, DEPTHS = (16, 32, 48, 64), (1, 1, 2, 1)
SMALL = {"num_classes": 7, "dims": DIMS, "depths": DEPTHS}
HF = {"hidden_sizes": list(DIMS), "depths": list(DEPTHS), "num_labels": 7}


@torch.no_grad()
def hf_stages(model: nn.Module, images: Tensor) -> Outputs:
    """transformers' maps after each stage; the first of its hidden states is what the stem gives."""
    found = model(images, output_hidden_states=True)
    return Outputs(found.logits, [], levels=list(found.hidden_states[-4:]))


def torchvision_model() -> nn.Module:
    """torchvision's class at a small size."""
    blocks = [CNBlockConfig(*each) for each in zip(DIMS, (*DIMS[1:], None), DEPTHS, strict=True)]
    return randomise(torchvision.models.ConvNeXt(blocks, num_classes=7))


def save_tensors(model: nn.Module, folder: Path) -> None:
    """torchvision writes no config."""
    save_file(model.state_dict(), folder / "model.safetensors")


@torch.no_grad()
def torchvision_stages(model: nn.Module, images: Tensor) -> Outputs:
    """torchvision's maps after each stage: every second of its features."""
    maps, levels = images, []
    for index, layer in enumerate(model.features):
        maps = layer(maps)
        levels += [maps] if index % 2 else []
    return Outputs(model(images), [], levels=levels)


CASES = [
    from_timm("convnext_tiny", image_size=(64, 64), **SMALL),
    from_timm("convnext_atto", "convolutions for linear maps, odd size", image_size=(75, 50), **SMALL),
    from_hf("ConvNextForImageClassification", image_size=(64, 96), run=hf_stages, **HF),
    Case(
        "convnext_tiny",
        "torchvision",
        torchvision_model,
        save_tensors,
        torchvision_stages,
        (64, 64),
        {"model": hint("convnext_tiny", **SMALL)},
    ),
]
