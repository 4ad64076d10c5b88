"""The command line under torchrun, as a person types it; on GPUs over NCCL where there are two."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support import processes
from support.small_data import photos

import vitrail
from vitrail.cli import main

TRAIN = ["--model", "vit32_small", "--image-size", "16", "--set", "options.dim=32", "--set", "options.depth=2"]
TRAIN += ["--set", "options.num_heads=2", "--set", "options.dropout=0", "--set", "options.attention.dropout=0"]
TRAIN += ["--set", "schedule.warmup_epochs=0", "--epochs", "2", "--batch-size", "16"]
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
PLACES = [
    pytest.param("cpu", "fsdp", marks=pytest.mark.slow),
    pytest.param("cuda", "ddp", marks=two_gpus),
    pytest.param("cuda", "fsdp", marks=two_gpus),
]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    images, folder = photos(72, size=16), tmp_path / "data"
    folder.mkdir()
    np.save(folder / "train_images.npy", images.array.permute(0, 2, 3, 1).numpy())
    np.save(folder / "train_labels.npy", images.targets["label"].numpy())
    return folder


@pytest.mark.parametrize(("device", "shard"), PLACES)
def test_two_processes_train_one_model_and_write_one_report(
    device: str, shard: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", str(data), *TRAIN, "--device", device, "--set", "precision=float32"]
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "vitrail"]
    command += [*words, "--shard", shard, "--out", str(tmp_path / "two")]
    done = processes.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == f"report: {tmp_path / 'two' / 'report.html'}\n"
    assert done.stderr.count("best epoch") == 1
    losses = [
        [json.loads(line)["train/loss"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4 if device == "cuda" else 1e-6)
    about = json.loads((tmp_path / "two" / "run.json").read_text())
    assert about["command"].startswith("torchrun --nnodes 1 --nproc-per-node 2 -m vitrail train ")
    assert about["environment"]["processes"] == 2
    assert vitrail.load(tmp_path / "two").config.num_classes == 2
