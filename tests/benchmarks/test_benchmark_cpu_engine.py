"""The benchmark of CPU engines: from weights to a report beside timm with the same weights, on a tiny model."""

import numpy as np
import pytest
from PIL import Image
from support.benchmarks import benchmark as load_benchmark
from support.registered import tiny

import vitrail

benchmark = load_benchmark("cpu_engine")


@pytest.fixture
def photos(tmp_path):
    draw = np.random.default_rng(0)
    for split, count in (("train", 6), ("test", 3)):
        for name in ("ant", "bee"):
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                Image.fromarray(draw.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    return tmp_path / "photos"


@pytest.mark.slow
def test_a_model_goes_from_weights_to_a_report(photos, tmp_path):
    vitrail.save(tiny("vit_tiny_patch16", num_classes=2), tmp_path / "weights")
    words = [
        "--model",
        str(tmp_path / "weights"),
        "--data",
        str(photos),
        "--rounds",
        "1",
        "--threads",
        "1",
        "--float32",
    ]
    options = benchmark.parse([*words, "--calibrate", "4", "--validate", "6", "--count", "4", "--batches", "2"])
    found = benchmark.measure(options, tmp_path)
    rows = {row["model"]: row for row in found["Side by side"].rows}
    names = ("model.onnx", "model.onnx, dynamic int8", "model.xml", "model.xml, bf16")
    assert set(rows) == {"timm", "vitrail", *names, "int8.onnx", "int8.xml", "int8.xml, bf16"}
    assert rows["vitrail"]["same answer"] == 1, "timm has the same weights, and normalises as we do"
    facts = found["Setting"].values
    assert facts["test images"] == 4
    assert facts["calibration, validation images"] == "4, 6"
    assert "in floating point" in found["Layers"].text


def test_test_images_are_no_training_images(photos, tmp_path):
    vitrail.save(tiny("vit_tiny_patch16"), tmp_path / "weights")
    eager = benchmark.TorchEngine(benchmark.open_model(tmp_path / "weights"))
    found = benchmark.Pictures.of(str(photos), eager, known=99, fresh=3)
    assert len(found.fresh) == 3
    assert len(found.known) > 8
    same = (found.known[:, None] == found.fresh[None]).all(axis=(2, 3, 4))
    assert not same.any()
