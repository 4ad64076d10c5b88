"""One step of training, or one forward pass, of any classifier of images: what speed is measured on."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from vitrail.hardware import Precision, autocast
from vitrail.layers.fp8 import freeze, use_fp8

Mode = Literal["train", "infer"]


def make_step(
    model: nn.Module, images: Tensor, *, mode: Mode, precision: Precision | Literal["fp8"]
) -> Callable[[], object]:
    """Forward, backward and AdamW on images B C H W with random targets; or a forward pass without gradients.

    For the latter, weights are rounded once, to bf16, or those of blocks to 8 bits.
    """
    device = images.device
    if mode == "infer":
        model.eval()
        if precision in ("bf16", "fp8"):
            images = images.to(torch.bfloat16)
            model = freeze(model) if precision == "fp8" else model.to(torch.bfloat16)
        casting: Precision = "fp16" if precision == "fp16" else "float32"

        def infer() -> object:
            with torch.inference_mode(), autocast(device, casting):
                return model(images)

        return infer
    if precision == "fp8":
        model, precision = use_fp8(model), "bf16"
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
