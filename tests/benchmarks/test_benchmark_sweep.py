"""The sweep of variants: its plan, runs that end, fail or are stopped, and that only validation counts."""

import json
import sys
import time

import numpy as np
import pytest
import yaml
from support.benchmarks import FOLDER
from support.benchmarks import benchmark as load_benchmark

from vitrail.cli.options import read_changes
from vitrail.config import from_dict
from vitrail.models.heads import UNetConfig
from vitrail.recipes import read_recipe
from vitrail.tasks.segment import SegmentConfig
from vitrail.training.config import TrainConfig, change
from vitrail.training.task_choice import split_spec

sweep = load_benchmark("sweep")
PLAN = yaml.safe_load((FOLDER / "camvid.yaml").read_text())


VARIANTS = sweep.design(PLAN["factors"]) | PLAN.get("variants", {})


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_of_camvid_is_a_valid_recipe(variant):
    changes = read_changes([*PLAN["common"], *VARIANTS[variant]])
    options, changes, spec = split_spec(read_recipe(PLAN["recipe"]), changes)
    assert spec.kind == "segment"
    assert change(change(TrainConfig(), options), changes).epochs == 80
    head = from_dict(SegmentConfig, spec.options).head
    assert isinstance(head, UNetConfig) == any("kind=unet" in one for one in VARIANTS[variant])


@pytest.mark.parametrize(("count", "runs"), [(5, 12), (9, 12), (11, 12), (12, 20), (19, 20)])
def test_a_design_measures_each_factor_by_all_runs(count, runs):
    names = [f"f{number}" for number in range(count)]
    found = sweep.design({name: [f"{name}=1"] for name in names})
    signs = np.array([[1 if name in run.split("+") else -1 for name in names] for run in found])
    assert len(found) == runs
    assert (signs.T @ signs == runs * np.eye(count)).all()  # no factor disturbs another
    assert (signs.sum(axis=0) == 0).all()
    for wrong, allowed in ((20, "19"), (4, "5")):
        with pytest.raises(SystemExit, match=allowed):
            sweep.design({str(number): [] for number in range(wrong)})


def test_effects_of_factors():
    factors = {"a": [], "b": [], "c": [], "d": [], "e": []}
    gains = {"a": 0.03, "b": -0.01}
    rows = [
        {"variant": run, "last": 0.6 + sum(gains.get(name, 0) for name in run.split("+"))}
        for run in sweep.design(factors)
    ]
    found = sweep.effects([*rows, {"variant": "another", "last": 0.9}], list(factors))
    assert (found[0][0], found[-1][0]) == ("a", "b")
    assert [gain for _, gain, _ in found] == pytest.approx([0.03, 0.0, 0.0, 0.0, -0.01], abs=1e-9)
    assert sweep.effects(rows[:3], list(factors)) == []


def test_a_job_for_each_variant_and_seed(tmp_path):
    words = ["plan.yaml", "--data", "x", "--only", "b", "--seeds", "3", "4", "--", "--epochs", "2"]
    plan = {"recipe": "demo", "metric": "miou", "common": ["epochs=9"], "variants": {"a": [], "b": ["ema=0.9"]}}
    first, second = sweep.jobs(plan, sweep.parse(words), tmp_path)
    assert (first.variant, first.seed, second.seed) == ("b", 3, 4)
    assert first.command[3:] == [
        "train", "x", "--recipe", "demo", "--seed", "3", "--out", str(tmp_path / "b-3"), "--set", "epochs=9",
        "--set", "ema=0.9", "--epochs", "2",
    ]  # fmt: skip
    with pytest.raises(SystemExit, match="known: a, b"):
        sweep.jobs(plan, sweep.parse([*words[:3], "--only", "c"]), tmp_path)


def job(folder, name, script):
    return sweep.Job(name, 0, folder / name, [sys.executable, "-c", script])


def test_runs_that_end_fail_and_are_stopped(tmp_path):
    slow = "import time; print('begun', flush=True); time.sleep(60)"
    todo = [job(tmp_path, "good", "pass"), job(tmp_path, "bad", "raise SystemExit('no data')")]
    assert {one.variant: ended for one, ended in sweep.run(todo, parallel=2, seconds=30)} == {
        "good": True,
        "bad": False,
    }
    assert "no data" in sweep.row(todo[1], "miou", ended=False)["problem"][0]
    start = time.monotonic()
    todo = [job(tmp_path, "slow", slow), job(tmp_path, "never", "pass")]
    assert [(one.variant, ended) for one, ended in sweep.run(todo, parallel=1, seconds=0.3)] == [("slow", False)]
    assert time.monotonic() - start < 20


def test_validation_alone_counts(tmp_path):
    one = job(tmp_path, "one", "")
    one.folder.mkdir()
    lines = [
        {"train/loss": 3.0, "epoch": 1, "seconds": 1.0},
        {"train/loss": 2.0, "val/miou": 0.5, "test/miou": 0.9, "epoch": 2, "seconds": 1.0},
        {"train/loss": 1.0, "val/miou": 0.4, "test/miou": 0.9, "epoch": 3, "seconds": 1.0},
    ]
    (one.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = sweep.row(one, "miou", ended=True)
    assert (found["best"], found["last"], found["loss"], found["seconds"], found["epochs"]) == (0.5, 0.4, 1.0, 3.0, 3)
    assert sweep.shown([found]).row_count == 1
