"""One step of training, or one forward pass, of any classifier of images: what speed is measured on."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from vitrail.hardware import Precision, autocast

Mode = Literal["train", "infer"]


def make_step(model: nn.Module, images: Tensor, *, mode: Mode, precision: Precision) -> Callable[[], object]:
    """Forward, backward and AdamW on images B C H W with random targets; or a forward pass without gradients."""
    device = images.device
    if mode == "infer":
        model.eval()

        def infer() -> object:
            with torch.inference_mode(), autocast(device, precision):
                return model(images)

        return infer
    model.train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type in ("cuda", "cpu"))

    def train() -> object:
        with autocast(device, precision):
            outputs = model(images)
        loss = nn.functional.cross_entropy(outputs.float(), torch.zeros(len(images), dtype=torch.long, device=device))
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return loss

    return train
