"""The profile of a training step: every part is timed in both directions, and floors follow from counts."""

import pytest
import torch

from vitrail.models.registry import create
from vitrail.profiling import step_profile as module
from vitrail.profiling.count import count
from vitrail.profiling.step_profile import Ceilings, ProfileConfig, Watch, profile_step

SMALL = {"image_size": 16, "dim": 32, "depth": 2, "num_heads": 2}


def test_the_floor_is_the_larger_of_arithmetic_and_memory() -> None:
    ceilings = Ceilings(macs=100.0, bytes=10.0)
    assert ceilings.floor(200, 10) == 2.0
    assert ceilings.floor(200, 50) == 5.0


def test_parts_have_all_products_and_their_bytes() -> None:
    model = create("vit32_small", **SMALL).train()
    images = torch.rand(3, 3, 16, 16)
    watch = Watch(model, images, torch.device("cpu"))
    with watch.watching():
        model(images).sum().backward()
    tree = count(model, images)
    pixels = next(node.total[1] for node in tree.children if node.path == "patch")  # they have no gradient
    assert sum(part.macs for part in watch.parts.values()) == 3 * tree.total[1] - pixels
    attention = watch.parts["SoftmaxAttention"]
    tokens = 3 * 17 * 32 * 4  # bytes of B P+N D
    weights = sum(value.numel() * 4 for value in model.blocks[0].attention.parameters())
    assert attention.modules == 2
    assert attention.moved == 2 * (5 * tokens + 3 * weights)
    assert all(part.forward[0] > 0 for part in watch.parts.values())
    assert attention.backward[0] > 0


@pytest.mark.parametrize("name", ["vit32_small", "swin_tiny_patch4_window7", "convnext_tiny"])
def test_a_report_adds_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"vit32_small": SMALL, "swin_tiny_patch4_window7": {"depths": (1, 1, 1, 1), "dims": (24, 48, 96, 192)}}
    other = {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32), "image_size": 32}
    monkeypatch.setattr(module, "create", lambda _, **__: create(name, **sizes.get(name, other)))
    monkeypatch.setitem(module._PROBE, "cpu", (64, 1 << 16))
    report = profile_step(name, ProfileConfig(batch=2, rounds=2, precision="float32"), device="cpu")
    rows = report.sections[0].rows  # type: ignore[union-attr]
    assert {row["part"] for row in rows} >= {"between the parts", "optimiser"}
    assert 0.9 < sum(row["of the step"] for row in rows) < 1.3
    assert all(row["saved"] is None or row["saved"] >= 0 for row in rows)
