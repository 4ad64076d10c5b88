"""The benchmark of advice: sets are left out with all of their rows."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.benchmarks import benchmark as load_benchmark
from support.compared_runs import labelled

from vitrail.advice.rows import packaged_rows

benchmark = load_benchmark("advice")


def test_every_set_is_advised_from_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.left_out()
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| ")][1:]
    sets = {row.set for row in benchmark.packaged_rows() if row.kind == "result" and row.values["task"] == "classify"}
    assert sets <= {row[0].removeprefix("| ") for row in rows}
    cifar = next(row for row in rows if row[0] == "| cifar10")
    assert cifar[1] != "cifar10-conv"  # whose only rows were left out
    assert cifar[4] == "cifar10-conv"


def test_the_facts_of_a_set_are_those_of_its_row() -> None:
    row = next(row for row in benchmark.packaged_rows() if row.of == "fashion-mnist")
    facts = benchmark.facts_of_row(row)
    assert (facts.images, facts.pixels, facts.grey) == (58800, 28, True)
    assert facts.distance(row.values) == 0


def test_settings_are_tried_once_and_kept_as_they_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("birds", "cars"):
        (tmp_path / "sets" / name).mkdir(parents=True)
        (tmp_path / "sets" / name / "done").touch()

    def training(job: Any, sets: Path, options: Any) -> list[str]:
        done = "import pathlib, sys; f = pathlib.Path(sys.argv[1]); f.mkdir(); "
        done += '(f / "best.json").write_text(\'{"metrics": {"test_accuracy": 0.5, "accuracy": 0.6}}\')'
        return [
            sys.executable,
            "-c",
            "raise SystemExit('no such image')" if "cars" in job.variant else done,
            str(job.folder),
        ]

    monkeypatch.setattr(benchmark, "_training", training)
    words = ["tried", str(tmp_path / "sets"), str(tmp_path / "out"), "--settings", "probe-photos"]
    benchmark.main(words)
    told = capsys.readouterr().out
    assert "2 trainings" in told
    assert "no such image" in told
    kept = json.loads((tmp_path / "out" / "advice.json").read_text())
    assert kept == {"birds": {"probe-photos": {"accuracy": 0.5, "val_accuracy": 0.6}}}
    benchmark.main(words)
    assert "1 trainings" in capsys.readouterr().out


def test_the_command_of_a_setting(tmp_path: Path) -> None:
    options = argparse.Namespace(device="cuda", epochs=1)
    words = {
        name: benchmark._training(benchmark.Job(f"birds.{name}", 0, tmp_path, []), tmp_path, options)
        for name in benchmark.SETTINGS_TRIED
    }
    assert words["tune-packaged"][-4:] == ["--device", "cuda", "--epochs", "1"]
    assert "--epochs" not in words["probe-photos"]
    assert all(str(tmp_path / "birds") in one for one in words.values())


def test_the_spread_of_a_difference() -> None:
    assert benchmark._spread(0.5, 0.5, 200) == pytest.approx(1.96 * 0.05)


def test_all_settings_that_were_tried_count_and_late_ones_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sets, out = labelled(tmp_path / "sets" / "birds").parent, tmp_path / "out"
    (sets / "birds" / "done").touch()
    out.mkdir()
    scores = {"default": 0.9, "probe-photos-64": 0.7, "tune-late": 0.95, "recipe-demo": 0.3}
    for name, score in scores.items():
        (out / f"birds.{name}.json").write_text(json.dumps({"accuracy": score, "val_accuracy": score}))
    monkeypatch.setattr("vitrail.training.first_try.measured", benchmark.measured)
    monkeypatch.setattr(benchmark, "_spread", lambda *one: 0.0)
    benchmark.main(["held", str(sets), str(out)])
    said = capsys.readouterr().out
    assert "advised default 90.0, best of 4 tried tune-late" in said
    assert "on 0 of 1 sets" in said
    benchmark.main(["held", str(sets), str(out), "--latency", "2"])
    said = capsys.readouterr().out
    assert "advised demo 30.0, best of 1 tried recipe-demo" in said


def test_rows_of_speeds_are_those_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = sys.modules["advice_speeds"]
    monkeypatch.setattr(speeds, "NETWORKS", ("demo",))
    threads = torch.get_num_threads()
    benchmark.main(["speeds", str(tmp_path / "rows.json")])
    torch.set_num_threads(threads)
    with pytest.raises(SystemExit, match="machine"):
        benchmark.main(["speeds", str(tmp_path / "gpu.json"), "--device", "cuda"])
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    like = next(one for one in packaged_rows() if one.kind == "speed")
    assert row.keys() == like.values.keys() | {"kind", "of", "hardware", "versions", "command"}
    assert row["ms"] > 0
    data = speeds.noise(tmp_path / "noise")
    assert len(list((data / "test").iterdir())) == len(list((data / "train").iterdir())) == speeds.CLASSES
