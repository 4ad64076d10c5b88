"""The benchmark of the pointing game: windows of a scene, and hits by their masks."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.benchmarks import benchmark as load_benchmark
from support.registered import tiny

import vitrail

benchmark = load_benchmark("pointing")


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    """One frame: a car in the window of the lower left, a wall of cars in the next, an empty road beside."""
    for name in ("test", "testannot"):
        (tmp_path / name).mkdir()
    mask = np.full((360, 480), 3, np.uint8)
    mask[240:300, 30:90] = mask[120:, 120:240] = benchmark.CAR
    Image.fromarray(mask).save(tmp_path / "testannot" / "0.png")
    photo = np.random.default_rng(0).integers(0, 256, (360, 480, 3), dtype=np.uint8)
    Image.fromarray(photo).save(tmp_path / "test" / "0.png")
    return tmp_path


def test_windows_of_cars_and_of_none_are_cut_with_their_masks(scenes: Path) -> None:
    assert benchmark.cut(scenes / "test", scenes / "testannot", scenes / "out", "test", 120) == 1
    (tile,) = (scenes / "out" / "tiles" / "test" / "car").iterdir()
    assert tile.name == "0-240-0.png"
    assert len(list((scenes / "out" / "tiles" / "test" / "none").iterdir())) == 1
    known = np.asarray(Image.open(scenes / "out" / "masks" / "test" / tile.name))
    assert known.shape == (120, 120)
    assert (known[:60, 30:90] == 255).all()
    assert known.sum() == 255 * 60 * 60


def test_every_method_is_judged_beside_chance(scenes: Path) -> None:
    benchmark.cut(scenes / "test", scenes / "testannot", scenes / "out", "test", 120)
    torch.manual_seed(0)
    model = tiny(image_size=32, num_classes=2)
    model.labels = ("car", "none")
    with torch.no_grad():
        model.get_submodule("head").get_parameter("bias").copy_(torch.tensor([1e3, 0.0]))  # everything is a car
    vitrail.save(model, scenes / "model")
    table, facts = benchmark.judged(str(scenes / "model"), scenes / "out", ["gradient", "rollout"])
    assert facts == {"test windows of cars": 1, "known for such": 1}
    hits = {row["method"]: row["hits"] for row in table.rows}
    assert set(hits) == {"gradient", "rollout", "random", "centre"}
    assert hits["random"] == pytest.approx(0.25, abs=0.02)
    assert hits["centre"] in (0, 1)
    assert benchmark.row("some", torch.tensor([True, True, True, False]))["95 %, ±"] == pytest.approx(0.424, abs=1e-3)
