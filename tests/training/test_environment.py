"""A run records what its bits depend on; a resumed one takes over its threads and notes what differs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.small_data import photos

from vitrail.errors import TrainingError
from vitrail.runs.record import Record
from vitrail.training.environment import changed, environment, threads_of, use_threads
from vitrail.training.loop import Loop
from vitrail.training.run import train

CPU = torch.device("cpu")
SMALL = {"model": "vit32_small", "image_size": 16, "batch_size": 16, "epochs": 2, "device": "cpu", "save_steps": 1}
SMALL |= {"options": {"dim": 32, "depth": 1, "num_heads": 2}, "augment": {"crop": "shift", "padding": 1}}


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run on two threads that was interrupted."""
    data, step = photos(32, size=16), Loop._step
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "train_images.npy", data.array.permute(0, 2, 3, 1).numpy())
    np.save(tmp_path / "data" / "train_labels.npy", data.targets["label"].numpy())

    def interrupted(loop: Loop, parts: list) -> None:
        if loop.progress.step == 1:
            raise KeyboardInterrupt
        step(loop, parts)

    with monkeypatch.context() as patch, use_threads(2), pytest.raises(KeyboardInterrupt):
        patch.setattr(Loop, "_step", interrupted)
        train(tmp_path / "data", folder=tmp_path / "run", silent=True, **SMALL)
    return tmp_path / "run"


@pytest.mark.parametrize(("asked", "used"), [({}, 2), ({"threads": 1}, 1)])
def test_a_resumed_run_has_the_threads_of_its_start(
    asked: dict, used: int, stopped: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen, step = set(), Loop._step

    def watched(loop: Loop, parts: list) -> None:
        seen.add(torch.get_num_threads())
        step(loop, parts)

    monkeypatch.setattr(Loop, "_step", watched)
    with use_threads(1):
        run = train(folder=stopped, resume=True, device="cpu", **asked)
        assert torch.get_num_threads() == 1
    assert seen == {used}
    said = capsys.readouterr().err
    assert ("threads: 2" in said) == (used == 2)
    noted = [note for note in Record.read(stopped).notes if "bit" in note]
    assert len(noted) == (used != 2)
    assert all("threads was 2, is 1" in note and note in run.plan.notes and note in said for note in noted)


@pytest.mark.parametrize("threads", [[], "2", 0, -1, 1e9, True, 10**12])
def test_damaged_threads_are_refused(threads: Any) -> None:
    plan = SimpleNamespace(config=SimpleNamespace(threads=None))
    with pytest.raises(TrainingError, match="threads"):
        threads_of(plan, {"threads": threads}, CPU, logs=None)  # type: ignore[arg-type]


def test_what_differs_is_named() -> None:
    now = environment(CPU, processes=1, precision="float32")
    assert {"torch", "device", "threads", "precision", "instructions", "deterministic"} <= now.keys()
    assert changed(now, now) is None
    assert changed(now | {"python": "2.7"}, now) is None
    assert "torch was 1.0, is" in changed(now | {"torch": "1.0"}, now)
    assert "MKL_CBWR was None, is AVX2" in changed(now, now | {"MKL_CBWR": "AVX2"})
    assert changed({"torch": now["torch"]}, now) is None  # an older run, which recorded less


def test_variables_that_choose_kernels_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert environment(CPU, processes=1, precision="float32")["ATEN_CPU_CAPABILITY"] == "default"
