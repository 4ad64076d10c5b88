"""The round of the first try: most valuable first, and what ended is kept when time runs out."""

import json
import sys
import time
from pathlib import Path

import pytest
from support.benchmarks import benchmark as load_benchmark

benchmark = load_benchmark("first_try_round")


def sets(folder: Path, *names: str) -> list[Path]:
    for name in names:
        for part, count in (("train", 9), ("test", 2)):
            for label in ("a", "b"):
                (folder / name / part / label).mkdir(parents=True)
                for index in range(count):
                    (folder / name / part / label / f"{index}.png").write_bytes(b"")
    return [folder / name for name in names]


def test_every_setting_comes_on_all_sets_before_few_images(tmp_path: Path) -> None:
    found = list(benchmark.jobs(sets(tmp_path, "cells", "roads"), ["scratch-conv", "probe-means"]))
    assert [(job.folder.name, job.setting, job.shots) for job in found[:4]] == [
        ("cells", "probe-means", 0), ("roads", "probe-means", 0),
        ("cells", "scratch-conv", 0), ("roads", "scratch-conv", 0),
    ]  # fmt: skip
    assert {job.folder.name for job in found[4:]} == {"cells"}
    assert {job.shots for job in found[4:]} == set(benchmark.SHOTS)


def test_few_images_of_a_class_and_all_for_testing(tmp_path: Path) -> None:
    (folder,) = sets(tmp_path, "cells")
    found = benchmark.few(folder, 3, tmp_path / "few" / "cells")
    assert [len(list(path.iterdir())) for path in sorted((found / "train").iterdir())] == [3, 3]
    assert len(list((found / "test").glob("*/*"))) == 4


@pytest.mark.parametrize("failed", [False, True])
def test_what_ended_is_kept_when_time_runs_out(failed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(job, place) -> dict[str, object]:
        time.sleep(600 if job.setting == "tune-photos" else 0)
        end = {"error": "no memory"} if failed else {"accuracy": 0.5}
        return {"set": job.folder.name, "setting": job.setting, "shots": job.shots, "seconds": 1.0, **end}

    monkeypatch.setattr(benchmark, "measure", measure)
    monkeypatch.setitem(sys.modules, benchmark.__name__, benchmark)  # jobs go through pickles
    todo = list(benchmark.jobs(sets(tmp_path, "roads"), ["probe-means", "tune-photos"], ()))
    out, place = tmp_path / "result.json", benchmark.Place(tmp_path, None, None)
    limits = {"processes": 2, "seconds": 5.0, "began": time.time()}
    benchmark.run(todo, [], out, place, **limits)
    kept = json.loads(out.read_text())["results"]
    assert [one["setting"] for one in kept] == ["probe-means"]
    benchmark.table(out)
    benchmark.split(out, tmp_path / "out")
    assert len(list((tmp_path / "out").iterdir())) == (0 if failed else 1)


def test_a_later_call_makes_only_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"set": "roads", "setting": "probe-means", "shots": 0, "accuracy": 0.5, "seconds": 1.0}
    monkeypatch.setattr(benchmark, "measure", lambda job, place: {**made, "setting": job.setting})
    monkeypatch.setitem(sys.modules, benchmark.__name__, benchmark)
    todo = list(benchmark.jobs(sets(tmp_path, "roads"), ["probe-means", "tune-late"], ()))
    out, place = tmp_path / "result.json", benchmark.Place(tmp_path, None, None)
    benchmark.run(todo, [{**made, "accuracy": 0.9}], out, place, processes=1, seconds=30.0, began=time.time())
    kept = {one["setting"]: one["accuracy"] for one in json.loads(out.read_text())["results"]}
    assert kept == {"probe-means": 0.9, "tune-late": 0.5}
