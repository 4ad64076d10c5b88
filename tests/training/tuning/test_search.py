"""A search by steps: through the contract of tasks, the default first; killed anywhere, the same trials in the end."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.task_case import TINY, task_of
from support.task_data import MAKERS, UNLABELLED, class_folders

from vitrail.errors import ConfigError, TrainingError
from vitrail.runs.record import Record, Result
from vitrail.runs.trained import open_model
from vitrail.tasks.classify import ClassifyConfig
from vitrail.training.first_try import measured
from vitrail.training.loop import Loop
from vitrail.training.plan import Plan, make_plan
from vitrail.training.probe_size import resized
from vitrail.training.tuning import Tuned, tune
from vitrail.training.tuning.journal import FILE, Journal
from vitrail.training.tuning.pilot import Pace

CASES = [
    ("regress", "numbers"), ("detect", "boxes"), ("mae", UNLABELLED),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (("classify", "labels"), ("segment", "mask"))),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    folder = tmp_path_factory.mktemp("tuned")
    data = class_folders(folder)
    return tune(data, steps=36, folder=folder / "run", **TINY)


@pytest.mark.parametrize(("kind", "target"), CASES)
def test_every_task_can_be_tuned(kind: str, target: str, tmp_path: Path) -> None:
    said: list[str] = []
    found = tune(
        MAKERS[target](tmp_path), steps=24, folder=tmp_path / "run", task=task_of(kind), say=said.append, **TINY
    )
    made = [trial for trial in found.trials if trial.scored]
    assert made[0] is found.default
    assert len(made) == 2
    name = found.task.best_metric
    assert found.chosen.metrics[name] == found.metrics[name]
    assert not found.task.is_better(found.default.metrics, found.chosen.metrics)
    assert open_model(tmp_path / "run").record.task.kind == kind
    assert any("trial 2" in line for line in said)
    assert "What was learned" in found.report().read_text()


def test_trials_are_runs_and_the_folder_opens_as_the_chosen_one(done: Tuned) -> None:
    made = [trial for trial in done.trials if trial.scored]
    assert [trial.number for trial in made] == list(range(1, len(made) + 1))
    assert len(made) > 4
    for trial in made:
        folder = done.folder / trial.folder
        assert Result.read(folder).metrics == trial.metrics
        assert not (folder / "checkpoints").exists()
    first, second = open_model(done.folder), open_model(done.folder / done.chosen.folder)
    states = first.task.state_dict(), second.task.state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert Record.read(done.folder).notes[-1].startswith("chosen of")
    assert done.budget.spent <= 36


def test_rungs_promote_the_best(done: Tuned) -> None:
    journal = Journal.read(done.folder)
    assert [rung.trials for rung in journal.brackets[0]] == [3, 1]
    first = [trial for trial in done.trials if trial.key.startswith("0.0")]
    (second,) = [trial for trial in done.trials if trial.key.startswith("0.1")]
    best = max(first, key=lambda trial: (trial.metrics["accuracy"], -trial.metrics["nll"]))
    assert second.traits == best.traits
    assert second.epochs > best.epochs


def test_killed_in_the_last_trial_the_same_call_makes_the_same_trials(
    done: Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, step = 0, Loop._step

    def killed(self: Loop, parts: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == sum(trial.spent for trial in done.trials[:4]) + 6:  # in the second epoch of the last trial
            raise KeyboardInterrupt
        step(self, parts)

    data, folder = done.folder.parent / "data", tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", killed)
        said: list[str] = []
        with pytest.raises(KeyboardInterrupt):
            tune(data, steps=36, folder=folder, say=said.append, **TINY)
        assert "--resume" in said.pop()
    said.clear()
    again = tune(data, steps=36, folder=folder, say=said.append, **TINY)
    assert "goes on after 4 trials" in said[0]
    same = [vars(trial) | {"seconds": 0} for trial in again.trials]
    assert same == [vars(trial) | {"seconds": 0} for trial in done.trials]
    assert again.chosen.number == done.chosen.number
    states = open_model(folder).task.state_dict(), open_model(done.folder).task.state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    said.clear()
    tune(folder=folder, resume=True, device="cpu", say=said.append)
    assert "complete" in said[0]


def test_the_default_has_the_size_that_train_would_choose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.training.first_try.measured", measured)
    monkeypatch.setattr("vitrail.training.first_try.SMALL", 8)
    asked: list[Plan] = []
    said: list[str] = []

    def chosen(plan: Plan, **_: object) -> Plan:
        asked.append(plan)
        assert Journal.read(tmp_path / "run").size is None, "it is written before any image is read"
        assert any("160 and 256" in line for line in said)
        return resized(plan, 256)

    monkeypatch.setattr("vitrail.training.tuning.search.choose_size", chosen)
    found = tune(class_folders(tmp_path), steps=1, folder=tmp_path / "run", device="cpu", say=said.append)
    assert asked[0].sizes == (256,)
    assert found.record.preprocess.image_size == (256, 256)
    again = tune(folder=tmp_path / "run", resume=True, device="cpu")
    assert again.record.preprocess.image_size == (256, 256)
    assert len(asked) == 1, "what was chosen is known"


def test_a_size_is_not_chosen_where_that_takes_longer_than_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.training.first_try.measured", measured)
    monkeypatch.setattr("vitrail.training.first_try.SMALL", 8)
    monkeypatch.setattr("vitrail.training.tuning.search.choose_size", lambda *_, **__: pytest.fail("it was chosen"))
    monkeypatch.setattr("vitrail.training.tuning.search.seconds_of", lambda *_: Pace(60.0, 0.0, 60.0))
    said: list[str] = []
    found = tune(class_folders(tmp_path), minutes=0.5, folder=tmp_path / "run", device="cpu", say=said.append)
    assert found.record.preprocess.image_size == (160, 160)
    assert any("takes about" in line for line in said)


@pytest.mark.filterwarnings("ignore::vitrail.errors.HeadNotice")
def test_with_nothing_named_the_first_trial_is_what_train_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.training.first_try.measured", measured)
    data = tmp_path / "tested"
    draw = np.random.default_rng(0)
    for part, count in (("train", 12), ("test", 4)):
        for number in range(count):
            label = ("dark", "light")[number % 2]
            (data / part / label).mkdir(parents=True, exist_ok=True)
            pixels = draw.integers(0, 150, (24, 24, 3)) + 80 * (number % 2)
            Image.fromarray(pixels.astype(np.uint8)).save(data / part / label / f"{number}.png")
    said: list[str] = []
    found = tune(data, steps=1, folder=tmp_path / "run", device="cpu", say=said.append, task=ClassifyConfig())
    assert "all of the budget" in said[-1]
    assert [trial.epochs for trial in found.trials] == [None]
    assert found.record.recipe["probe"] == "linear"
    assert found.record.start == make_plan(data).start
    assert found.default_was_best
    assert found.tested == {1: found.metrics["test_accuracy"]}
    assert "default was best" in str(found)


def test_what_cannot_be_is_refused(tmp_path: Path, done: Tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="data"):
        tune(steps=5)
    with pytest.raises(ConfigError, match="teacher"):
        tune("demo", steps=5, folder=tmp_path / "new", teacher=torch.nn.Identity())
    with pytest.raises(TrainingError, match="already"):
        tune("demo", steps=5, folder=done.folder)
    with pytest.raises(TrainingError, match="resume"):
        tune(folder=tmp_path, resume=True)
    with pytest.raises(ConfigError, match="epochs"):
        tune(folder=done.folder, resume=True, epochs=3)
    content = json.loads((done.folder / FILE).read_text())
    assert content["chosen"] == done.chosen.number
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="torchrun"):
        tune("demo", steps=5)
