"""Which task a run has: by its name, by the data, by a recipe; and whose options are refused."""

from pathlib import Path

import pytest
import torch
from support.registered import tiny
from support.small_data import Made, photos, split

from vitrail.data.augment.augmentation import MixConfig
from vitrail.data.dataset import Splits
from vitrail.data.targets import NumbersTarget
from vitrail.data.targets.target import Target
from vitrail.errors import ConfigError
from vitrail.models.checkpoint import save
from vitrail.tasks.classify import ClassifyConfig
from vitrail.tasks.distill import DistillConfig
from vitrail.tasks.mae import MAEConfig
from vitrail.tasks.regress import RegressConfig
from vitrail.training.plan import make_plan
from vitrail.training.task_choice import choose_task, open_for_task, split_spec

SMOOTH = {"epochs": 3, "task": {"label_smoothing": 0.1}}


def numbers() -> Splits:
    def part(count: int) -> Made:
        made = photos(count)
        return Made(made.array, {"numbers": torch.rand(count, 1)}, {"numbers": NumbersTarget(names=("age",))})

    return Splits(part(20), part(12), None)


def test_targets_that_cannot_be_mixed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(NumbersTarget, "mix", Target.mix)
    with pytest.raises(ConfigError, match="mixup"):
        make_plan(numbers(), changes={"mix": {"mixup": 0.2}})
    save(tiny(num_classes=0), tmp_path)  # weights to start from are tuned with a recipe that mixes
    plan = make_plan(numbers(), start=tmp_path)
    assert plan.config.mix == MixConfig()
    assert any("Mixup" in note for note in plan.notes)


def test_a_recipe_is_separated_from_its_task() -> None:
    plain, changes, spec = split_spec(SMOOTH, {"seed": 1, "task": {"kind": "classify"}})
    assert (plain, changes) == ({"epochs": 3}, {"seed": 1})
    assert spec == ("classify", {}, {"label_smoothing": 0.1})


@pytest.mark.parametrize(
    ("recipe", "changes", "task", "expected"),
    [
        ({}, {}, None, (None, {}, {})),
        ({"task": "mae"}, {}, None, ("mae", {}, {})),
        ({"pretrain": {"kind": "mae", "mask": 0.5}}, {}, None, ("mae", {"mask": 0.5}, {})),
        ({"task": {"kind": "mae", "mask": 0.5}}, {"task": {"dim": 32}}, None, ("mae", {"mask": 0.5, "dim": 32}, {})),
        ({"task": {"kind": "mae", "mask": 0.5}}, {"task": {"dim": 32}}, "mae", ("mae", {"mask": 0.5, "dim": 32}, {})),
        ({"task": {"kind": "mae", "mask": 0.5}}, {}, "regress", ("regress", {}, {})),
        (SMOOTH, {"task": {"delta": 2.0}}, "regress", ("regress", {"delta": 2.0}, {"label_smoothing": 0.1})),
        ({}, {"task": {"safe": ["flip"]}}, {"kind": "regress"}, ("regress", {"safe": ["flip"]}, {})),
        ({}, {}, "detect, depth", ("many", {"tasks": ["detect", "depth"]}, {})),
        ({}, {}, ["detect", "depth"], ("many", {"tasks": ["detect", "depth"]}, {})),
        (
            {"tasks": {"detect": {"most": 9}, "segment": {}}},
            {"tasks": {"detect": {"head": {"dim": 8}}}},
            None,
            ("many", {"tasks": {"detect": {"most": 9, "head": {"dim": 8}}, "segment": {}}}, {}),
        ),
        (
            {"tasks": {"detect": {"most": 9}, "segment": {}}},
            {},
            "depth,detect",
            ("many", {"tasks": {"depth": {}, "detect": {"most": 9}}}, {}),
        ),
        (
            {},
            {"task": {"kind": "detect,depth", "tasks": {"detect": {"most": 9}}}},
            None,
            ("many", {"tasks": {"detect": {"most": 9}, "depth": {}}}, {}),
        ),
    ],
)
def test_later_options_override_earlier_ones(recipe: dict, changes: dict, task: object, expected: tuple) -> None:
    assert split_spec(recipe, changes, task=task)[2] == expected


def test_a_config_is_taken_as_it_is() -> None:
    config = RegressConfig(delta=2.0, safe=("flip",))
    spec = split_spec(SMOOTH, task=config)[2]
    assert choose_task(spec, numbers(), has_teacher=False)[0] == config


def test_the_data_suggest_a_task_and_it_is_noted() -> None:
    spec = split_spec({})[2]
    task, notes = choose_task(spec, numbers(), has_teacher=False)
    assert task == RegressConfig()
    assert "inferred" in notes[0]
    task, notes = choose_task(spec, split(photos(20)), has_teacher=False)
    assert task == ClassifyConfig()
    assert choose_task(spec, split(photos(20)), has_teacher=True)[0] == DistillConfig()
    named = split_spec({}, task="classify")[2]
    assert "inferred" not in choose_task(named, split(photos(20)), has_teacher=False)[1][0]


def test_options_of_a_recipe_without_a_kind_are_for_the_tasks_that_have_them() -> None:
    spec = split_spec(SMOOTH)[2]
    assert choose_task(spec, split(photos(20)), has_teacher=False)[0] == ClassifyConfig(label_smoothing=0.1)
    assert choose_task(spec, split(photos(20)), has_teacher=True)[0] == DistillConfig(label_smoothing=0.1)
    assert choose_task(spec, numbers(), has_teacher=False)[0] == RegressConfig()


def test_options_that_were_asked_for_are_refused_where_the_task_has_none() -> None:
    for spec in (split_spec({}, {"task": {"label_smoothing": 0.1}})[2], split_spec({}, task={"delt": 1.0})[2]):
        with pytest.raises(ConfigError, match=r"task\.\w+ is not an option of RegressConfig"):
            choose_task(spec, numbers(), has_teacher=False)
    misspelt = split_spec({"task": {"label_smothing": 0.1}})[2]  # no task has that
    with pytest.raises(ConfigError, match="'label_smoothing'"):
        choose_task(misspelt, split(photos(20)), has_teacher=False)


def test_fine_tuning_without_a_recipe_takes_the_options_of_its_own() -> None:
    with pytest.warns(match="head"):
        assert make_plan(split(photos(20)), start="packaged").task == ClassifyConfig(label_smoothing=0.1)
    with pytest.warns(match="head"):
        assert make_plan(numbers(), start="packaged").task == RegressConfig()
    with pytest.warns(match="head"):
        plan = make_plan(split(photos(20)), start="packaged", changes={"task": {"label_smoothing": 0.2}})
    assert plan.task == ClassifyConfig(label_smoothing=0.2)


def test_a_task_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match="'regress'"):
        split_spec({}, task="regres")
    with pytest.raises(ConfigError, match="mapping"):
        split_spec({"task": 3})


def test_options_of_a_head_change_those_of_a_recipe() -> None:
    recipe = {"task": {"kind": "segment", "head": {"kind": "segformer", "dim": 64}}}
    assert split_spec(recipe, {"task": {"head": {"dropout": 0.2}}})[2].options["head"] == {
        "kind": "segformer",
        "dim": 64,
        "dropout": 0.2,
    }
    assert split_spec(recipe, {"task": {"head": {"kind": "linear"}}})[2].options["head"] == {"kind": "linear"}


def test_many_tasks_read_all_of_their_targets() -> None:
    spec = split_spec({}, task="detect,depth")[2]
    splits, wanted = open_for_task("scenes:20:16", spec)
    assert wanted.several
    assert list(splits.train.schema) == ["boxes", "depth"]
    task, notes = choose_task(spec, splits, has_teacher=False)
    assert list(task.tasks) == ["detect", "depth"]
    assert "many" in notes[0]
    with pytest.raises(ConfigError, match="mask"):
        choose_task(split_spec({}, task="segment,depth")[2], splits, has_teacher=False)


def test_a_task_that_reads_no_labels_gets_none() -> None:
    splits, _ = open_for_task(split(photos(20)), split_spec({}, task="mae")[2])
    assert splits.train.schema == splits.val.schema == {}
    assert choose_task(split_spec({}, task="mae")[2], splits, has_teacher=False)[0] == MAEConfig()


def test_targets_of_another_kind_are_refused() -> None:
    with pytest.raises(ConfigError, match="numbers"):
        choose_task(split_spec({}, task="regress")[2], split(photos(20)), has_teacher=False)


def test_a_goal_is_for_classes() -> None:
    with pytest.raises(ConfigError, match="--goal"):
        make_plan(numbers(), changes={"task": {"goal": {"kind": "f1"}}})
