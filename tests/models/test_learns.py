"""Every family learns: its smallest size fits 64 real images in a bounded number of steps."""

import pytest
import torch
import torch.nn.functional as F
from support.registered import one_of_each_design, shrunk
from torch import Tensor

from vitrail.config import apply
from vitrail.data.sources.embedded import read_embedded
from vitrail.models.registry import build, resolve

IMAGES, STEPS, BATCH, EVERY = 64, 300, 32, 5


@pytest.fixture(scope="module")
def pictures() -> tuple[Tensor, Tensor]:
    data = read_embedded().train
    images = torch.stack([data.read(index) for index in range(IMAGES)]).float() / 127.5 - 1  # 64 1 28 28
    images = F.pad(images, (2, 2, 2, 2), value=-1.0)
    return images.to(memory_format=torch.channels_last), data.targets["label"][:IMAGES]


ALIKE = ("deit_tiny_distilled_patch16", "swinv2_tiny_window8", "pvt_v2_b0", "convformer_s18")  # they learn as others do
DESIGNS = [pytest.param(name, marks=[pytest.mark.slow] * (name in ALIKE)) for name in one_of_each_design()]


@pytest.mark.parametrize("name", DESIGNS)
def test_learns(name: str, pictures: tuple[Tensor, Tensor]) -> None:
    images, labels = pictures
    family, _ = resolve(name)
    config = apply(shrunk(name), {"channels": 1, "num_classes": 10, "image_size": 32})
    if hasattr(getattr(config, "patch", None), "width"):  # a ResNet, most of the time of its model
        config = apply(config, {"patch": {"width": 8}})
    torch.manual_seed(0)
    # On a CPU, depth-wise convolutions are twice as fast with channels last.
    model = build(family, config).train().to(memory_format=torch.channels_last)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    found = 0.0
    for step in range(STEPS):
        chosen = torch.randperm(IMAGES)[:BATCH]
        loss = F.cross_entropy(model(images[chosen]), labels[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if (step + 1) % EVERY == 0:
            found = fitted(model, images, labels)
            if found > 0.9:
                return
    pytest.fail(f"{found:.0%} of its training images after {STEPS} steps")


@torch.no_grad()
def fitted(model: torch.nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    right = (model(images).argmax(dim=1) == labels).float().mean().item()
    model.train()
    return right
