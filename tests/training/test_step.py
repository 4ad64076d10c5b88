"""Steps: on a GPU, recorded ones do what launched ones do."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.small_data import photos, split
from support.small_run import SCHEMA, SEEN

import vitrail
from vitrail.data.augment.augmentation import Augment, AugmentConfig, MixConfig
from vitrail.data.augment.mix import Mix
from vitrail.data.dataset import Batch
from vitrail.data.randomness import Stream
from vitrail.errors import ConfigError
from vitrail.training.distributed import World
from vitrail.training.optim.optimiser import set_rate
from vitrail.training.step import fused, unrecordable

SMALL = {
    "model": "vit32_small", "image_size": 16, "options": {"dim": 32, "depth": 2, "num_heads": 2, "drop_path": 0.2},
    "batch_size": 16, "epochs": 3, "mix": {"mixup": 0.8, "cutmix": 1.0}, "ema": 0.9, "silent": True,
    "augment": {"crop": "shift", "randaugment": 2, "erase": 0.5},
}  # fmt: skip
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_an_epoch_on_the_device_draws_the_same_numbers():
    ids = torch.arange(5)
    for epoch in (0, 1, 399):
        expected = Stream(7, epoch, ids).bits("crop", 3)
        assert torch.equal(Stream(7, torch.tensor(epoch), ids).bits("crop", 3), expected)


def test_a_rate_on_the_device_is_written_in_place():
    optimiser = torch.optim.SGD([{"params": [torch.zeros(1)], "scale": 0.5}], lr=1.0)
    held = optimiser.param_groups[0]["lr"] = torch.zeros(())
    set_rate(optimiser, 0.3)
    assert optimiser.param_groups[0]["lr"] is held
    assert held.item() == pytest.approx(0.15)


def test_a_traced_augmentation_works_for_other_images_and_epochs(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda graph, **_: graph)
    config = AugmentConfig(crop="shift", padding=2, flip=True, randaugment=1, erase=0.5)
    augment = Augment(config, SEEN, seed=0, schema=SCHEMA)
    mix = Mix(MixConfig(mixup=0.8, cutmix=1.0), schema=SCHEMA, seed=0)

    def treat(batch: Batch, epoch: int | torch.Tensor) -> Batch:
        return mix(augment(batch, epoch), epoch)

    def drawn(first: int) -> Batch:
        images = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8)
        return Batch(images, {"label": torch.randint(0, 4, (6,))}, torch.arange(first, first + 6))

    noted, other = fused(treat, drawn(0), torch.tensor(3)), drawn(100)
    for got, expected in zip(noted(other, torch.tensor(7)).tensors(), treat(other, 7).tensors(), strict=True):
        assert torch.equal(got, expected)


def test_where_steps_can_be_recorded():
    gpu, cpu, alone = torch.device("cuda"), torch.device("cpu"), World()
    task = SimpleNamespace(capturable=True)
    detector = SimpleNamespace(capturable=False, config=SimpleNamespace(kind="detect"))
    assert unrecordable(task, gpu, alone, parts=1, precision="bf16") is None
    assert "GPU" in unrecordable(task, cpu, alone, parts=1, precision="bf16")
    assert "process" in unrecordable(task, gpu, World(0, 2), parts=1, precision="bf16")
    assert "accumulate" in unrecordable(task, gpu, alone, parts=2, precision="bf16")
    assert "bf16" in unrecordable(task, gpu, alone, parts=1, precision="fp16")
    assert "matching" in unrecordable(detector, gpu, alone, parts=1, precision="bf16")


def test_a_run_on_a_cpu_says_that_cudagraphs_is_not_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = vitrail.train(split(photos(32, size=16)), folder=tmp_path, compile="cudagraphs", **SMALL | {"silent": False})
    assert "cudagraphs is not used" in capsys.readouterr().err
    assert run.config.compile == "cudagraphs"


@needs_gpu
@pytest.mark.filterwarnings("ignore::UserWarning:torch._inductor")
def test_recorded_steps_are_launched_steps(tmp_path: Path) -> None:
    undropped = {"drop_path": 0.0, "dropout": 0.0, "attention": {"dropout": 0.0}}  # compiled, they draw other numbers
    still = SMALL | {"options": {**SMALL["options"], **undropped}, "precision": "float32"}
    runs = {
        compiled: vitrail.train(
            split(photos(64, size=16)), folder=tmp_path / str(compiled), device="cuda", compile=compiled, **still
        )
        for compiled in (False, True, "cudagraphs")
    }
    losses = {key: [entry["train"]["loss"] for entry in run.history] for key, run in runs.items()}
    assert losses[True] == pytest.approx(losses[False], rel=1e-3)
    assert losses["cudagraphs"] == pytest.approx(losses[False], rel=1e-3)


@needs_gpu
@pytest.mark.filterwarnings("ignore::UserWarning:torch._inductor")
def test_recorded_steps_repeat_themselves(tmp_path: Path) -> None:
    first, again = (
        vitrail.train(split(photos(64, size=16)), folder=tmp_path / name, device="cuda", compile=True, **SMALL)
        for name in ("first", "again")
    )
    assert [entry["train"] for entry in first.history] == [entry["train"] for entry in again.history]


def test_a_batch_that_is_too_small_for_a_norm(tmp_path: Path) -> None:
    small = {"dims": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "stem_dim": 8, "bottleneck": False}
    run = {"model": "resnet18", "image_size": 32, "options": small, "batch_size": 1, "folder": tmp_path / "run"}
    with pytest.raises(ConfigError, match="batch"):
        vitrail.train(split(photos(8)), silent=True, **run)
