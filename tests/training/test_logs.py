"""What a run says and writes down."""

import io
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from vitrail.errors import ConfigError
from vitrail.training.logs import Logs

ENTRY = {
    "epoch": 1, "step": 4, "lr": 0.1, "train": {"loss": 1.25}, "val": {"accuracy": 0.5, "images": 24},
    "seconds": 2.0, "images_per_second": 1234.5, "waiting": 0.031,
}  # fmt: skip


def written(folder: Path, *, terminal: bool, **options: bool) -> tuple[str, list[dict]]:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=200, color_system=None)
    with Logs(folder, images=16, console=console, **options) as logs:
        logs.begin(0, 3, 4, 0, 0.0)
        logs.step(2, {"loss": 1.5}, 0.0)
        if logs._bar is not None:
            logs._bar.refresh()
        logs.end(ENTRY, best=True)
    file = folder / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return console.file.getvalue(), [json.loads(line) for line in lines]


def test_one_line_an_epoch_where_there_is_no_terminal(tmp_path: Path) -> None:
    said, lines = written(tmp_path, terminal=False)
    assert said == "epoch 1/3  loss 1.2500  val  accuracy 0.5000  1,234 images/s  waiting 3.1 %  best\n"
    assert lines[0]["train/loss"] == 1.25
    assert lines[0]["step"] == 4


def test_a_line_has_the_numbers_that_the_task_names_and_the_file_has_all(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=200, color_system=None)
    entry = ENTRY | {"train": {"loss": 1.25, "part": 0.5}, "val": {"ap": 0.5, "ap_small": 0.1, "images": 24}}
    with Logs(tmp_path, images=16, console=console) as logs:
        logs.printed = ("loss", "ap")
        logs.begin(0, 3, 4, 0, 0.0)
        logs.end(entry, best=False)
    line = console.file.getvalue()
    assert "loss 1.2500  val  ap 0.5000" in line
    assert "part" not in line
    assert "ap_small" not in line
    assert {"train/part", "val/ap_small"} <= json.loads((tmp_path / "metrics.jsonl").read_text()).keys()


def test_a_bar_in_a_terminal(tmp_path: Path) -> None:
    said, _ = written(tmp_path, terminal=True)
    assert re.search(r"epoch 1/3 .*2/4 loss 1.5000  [\d,]+ images/s  waiting 0.0 %", said)
    assert "accuracy 0.5000" in said


class Clock:
    """A clock that is advanced by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("vitrail.training.logs.time", SimpleNamespace(perf_counter=lambda: self.now))


def quiet_place() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=200)


def test_a_long_run_says_so_at_once_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, console = Clock(monkeypatch), quiet_place()
    with Logs(tmp_path, images=16, console=console) as logs:
        logs.advise = lambda epoch: f"an epoch of {epoch:g} s is long"
        logs.begin(0, 30, 13, 0, 0.0)
        clock.now += 20
        logs.step(1, {"loss": 1.5}, 0.0)
        clock.now += 20
        logs.step(2, {"loss": 1.4}, 0.0)
        clock.now += 20  # a minute of silence
        logs.step(3, {"loss": 1.3}, 6.0)
        logs.end(ENTRY, best=False)
    said = console.file.getvalue().splitlines()
    assert said[:3] == [
        "this will take about 2 h 10 min: 390 steps of 20 s",
        "an epoch of 260 s is long",
        "epoch 1/30  step 3/13  loss 1.3000  0.8 images/s  waiting 10.0 %",
    ]
    assert len(said) == 4


def test_a_resumed_run_counts_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, console = Clock(monkeypatch), quiet_place()
    with Logs(tmp_path, images=16, console=console) as logs:
        logs.begin(2, 4, 10, 3, 0.0)
        clock.now += 1
        logs.step(4, {}, 0.0)
        clock.now += 10
        logs.step(9, {}, 0.0)
    assert console.file.getvalue() == "this will take about 34 s: 17 steps of 2 s\n"


def test_reading_images_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, console = Clock(monkeypatch), quiet_place()
    with Logs(tmp_path, console=console).reading("training images") as progress:
        progress(100, 1_000)
        clock.now += 61
        progress(500, 1_000)
    assert console.file.getvalue() == "reading training images: 500 of 1,000 images\n"
    console = Console(file=io.StringIO(), force_terminal=True, width=200, color_system=None)
    logs = Logs(tmp_path, console=console)
    with logs.reading("training images") as progress:
        progress(250, 1_000)
        logs._bar.refresh()
    assert re.search(r"reading training images .* 250/1000 ", console.file.getvalue())


def test_a_narrow_terminal_shows_all_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    with Logs(tmp_path, images=16, console=console) as logs:
        logs.begin(0, 30, 13, 0, 0.0)
        clock.now += 1
        logs.step(2, {"loss": 1.5, "accuracy": 0.25}, 0.0)
        logs._bar.refresh()
    shown = r"epoch 1/30 +2/13 loss 1\.5000 accuracy 0\.2500 32 images/s waiting 0\.0 % "
    assert re.search(shown, console.file.getvalue())


def test_other_processes_keep_silent_and_write_nothing(tmp_path: Path) -> None:
    said, lines = written(tmp_path, terminal=True, main=False)
    assert (said, lines) == ("", [])


def test_brackets_are_not_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Logs(tmp_path).say("[bold]runs/x[/bold]")
    assert capsys.readouterr().err == "[bold]runs/x[/bold]\n"


def test_resume_drops_metrics_of_repeated_epochs(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 4}\n{"step": 8}\n{"step": 12}\n{"ste')
    Logs(tmp_path, silent=True).resume([{"step": 4}, {"step": 8, "val": {"accuracy": 0.5}}])
    assert file.read_text() == '{"step": 4}\n{"val/accuracy": 0.5, "step": 8}\n'


def test_resume_replaces_what_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b"\xff\n")
    Logs(tmp_path, silent=True).resume([{"step": 4}])
    assert file.read_text() == '{"step": 4}\n'
    file.unlink()
    os.mkfifo(file)
    Logs(tmp_path, silent=True).resume([{"step": 4}])
    assert file.read_text() == '{"step": 4}\n'


def test_resume_writes_a_line_that_a_kill_prevented(tmp_path: Path) -> None:
    Logs(tmp_path, silent=True).resume([{"step": 4}])
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 4}\n'


def test_tensorboard_gets_the_curves(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with Logs(tmp_path, sinks=["tensorboard"], silent=True) as logs:
        logs.begin(0, 1, 4, 0, 0.0)
        logs.end(ENTRY, best=False)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("val/accuracy")] == [(4, 0.5)]


def test_missing_wandb_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(ConfigError, match="wandb"):
        Logs(tmp_path, sinks=["wandb"])


def test_wandb_gets_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple] = []

    class Service:
        @staticmethod
        def init(**options: object) -> "Service":
            calls.append(("init", options["name"]))
            return Service()

        def log(self, values: dict, step: int) -> None:
            calls.append(("log", step, values["train/loss"]))

        def finish(self) -> None:
            calls.append(("finish",))

    monkeypatch.setitem(__import__("sys").modules, "wandb", Service)
    with Logs(tmp_path, sinks=["wandb"], silent=True) as logs:
        logs.begin(0, 1, 4, 0, 0.0)
        logs.end(ENTRY, best=False)
    assert calls == [("init", tmp_path.name), ("log", 4, 1.25), ("finish",)]
