"""A folder has one run at a time, in a fresh or a resumed process; the lock of a dead one is no obstacle."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import started
from support.run_folder import run_folder
from support.small_data import photos, split

from vitrail.cli import main
from vitrail.errors import BusyError, TrainingError
from vitrail.training.distributed import World
from vitrail.training.one_run import check_new_run, one_run
from vitrail.training.run import train

HOLDER = """
import sys
from pathlib import Path
from vitrail.training.distributed import World
from vitrail.training.one_run import one_run
with one_run(Path(sys.argv[1]), World()):
    print("held", flush=True)
    sys.stdin.read()
"""
SMALL = {"model": "vit32_small", "image_size": 16, "batch_size": 16, "epochs": 1, "device": "cpu", "silent": True}
SMALL |= {"options": {"dim": 16, "depth": 1, "num_heads": 2}, "augment": {"crop": "shift", "padding": 1}}


def test_train_and_resume_are_refused_while_another_process_has_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, folder = split(photos(32, size=16)), tmp_path / "run"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with started([sys.executable, "-c", HOLDER, str(folder)], **pipes) as process:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(BusyError, match=f"process {process.pid} on {socket.gethostname()}"):
            train(data, folder=folder, **SMALL)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert [item.name for item in folder.iterdir()] == [".lock"]  # of the dead one
    train(data, folder=folder, **SMALL)
    assert not (folder / ".lock").exists()
    with one_run(folder, World()):
        with pytest.raises(BusyError, match=str(os.getpid())):
            train(data, folder=folder, resume=True, device="cpu")
        with pytest.raises(TrainingError, match="resume"):
            train(data, folder=folder, **SMALL)


def test_the_demo_does_not_remove_one_that_is_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    running = Path("runs/demo")
    with one_run(running, World()):
        (running / "run.json").write_text("{}")
        assert main(["demo"]) == 2
        assert "in use" in capsys.readouterr().err
        assert (running / "run.json").exists()


def test_a_folder_is_left_as_it_was(tmp_path: Path) -> None:
    with one_run(tmp_path / "deep" / "run", World()):
        assert (tmp_path / "deep" / "run").is_dir()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(TrainingError, match="cannot be written"), one_run(tmp_path / "file" / "run", World()):
        pytest.fail("it began")


def test_all_processes_of_a_run_are_refused_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = BusyError("it is in use")
    monkeypatch.setattr(World, "collect", lambda *_: [refusal, None])
    with pytest.raises(BusyError, match="in use"), one_run(tmp_path / "run", World(rank=1, size=2)):
        pytest.fail("it began")
    assert list(tmp_path.iterdir()) == []


def test_a_complete_run_without_checkpoints_is_not_overwritten(tmp_path: Path) -> None:
    check_new_run(None)
    check_new_run(tmp_path)
    run_folder(tmp_path)
    with pytest.raises(TrainingError, match="complete"):
        check_new_run(tmp_path)
    (tmp_path / "checkpoints" / "step-1").mkdir(parents=True)
    check_new_run(tmp_path)  # others say that this one can be resumed
    (tmp_path / "best.json").unlink()
    (tmp_path / "checkpoints" / "step-1").rmdir()
    check_new_run(tmp_path)  # it never ended
