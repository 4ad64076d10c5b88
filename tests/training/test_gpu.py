"""What only a GPU can show of a run: exact resumes in every precision, recorded or not, and the loss scale of fp16.

Two GPUs show more in test_torchrun.py; steps, batches and augmentation have their own in test_step.py, test_batches.py
and test_augment.py. All of them: pytest -n 0 tests/training tests/data -k "gpu or recorded or torchrun or cuda".
"""

from pathlib import Path

import pytest
import torch
from support.small_data import photos, split

import vitrail
from vitrail.training.state import Store
from vitrail.training.verify import verify_resume

SMALL = {
    "model": "vit32_small", "image_size": 16, "options": {"dim": 32, "depth": 2, "num_heads": 2, "drop_path": 0.2},
    "batch_size": 16, "epochs": 3, "mix": {"mixup": 0.8, "cutmix": 1.0}, "ema": 0.9, "device": "cuda",
    "augment": {"crop": "resized", "colour": 0.3, "randaugment": 2, "erase": 0.5},
}  # fmt: skip

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch._inductor"),  # advice on speed
]


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_resuming_on_a_gpu_is_exact(precision: str, compiled: bool, kind: str) -> None:
    options = SMALL | {"precision": precision, "compile": compiled, "optimiser": {"kind": kind}}
    report = verify_resume(split(photos(64, size=16)), steps=7, at=3, **options)
    assert report["Resume"].values["equal"] is True, str(report)


def test_pre_training_resumes_exactly_on_a_gpu() -> None:
    options = SMALL | {"mix": {}, "pretrain": {"kind": "mae", "dim": 32, "depth": 1, "num_heads": 2}}
    report = verify_resume(split(photos(64, size=16)), steps=7, at=5, **options)
    assert report["Resume"].values["equal"] is True, str(report)


def test_fp16_on_a_gpu_learns_and_keeps_its_loss_scale(tmp_path: Path) -> None:
    run = vitrail.train(split(photos(64, size=16)), folder=tmp_path, silent=True, **SMALL | {"precision": "fp16"})
    assert all(entry["train"]["loss"] < 2 for entry in run.history)
    scaler = Store(tmp_path / "checkpoints")._newest()[1].counters["scaler"]
    assert scaler["scale"] > 0
    assert 0 < scaler["_growth_tracker"] <= 12
