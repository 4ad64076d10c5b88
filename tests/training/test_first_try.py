"""What a run does where nothing is named: decided by measured cells, and said."""

from pathlib import Path

import pytest
import torch
from support.small_data import Made, grey_squares, photos, split
from support.task_data import boxes_table, class_folders, numbers_table

from vitrail.data.sources.opening import find
from vitrail.data.targets import LabelsTarget, NumbersTarget
from vitrail.errors import HeadNotice
from vitrail.packaged import PHOTOS
from vitrail.tasks.classify import ClassifyConfig
from vitrail.tasks.mae import MAEConfig
from vitrail.tasks.regress import RegressConfig
from vitrail.tasks.task import TaskConfig
from vitrail.training import first_try as table
from vitrail.training.first_model import Sampled
from vitrail.training.first_try import (
    SETTINGS,
    Cell,
    Measured,
    default_on,
    first_try,
    first_try_for,
    first_try_on,
    measured,
)
from vitrail.training.plan import make_plan

CPU, GPU = torch.device("cpu"), torch.device("cuda")  # planned for, not used
SLOW = Cell("roads", 40, 2, 100, grey=False, results={"probe-photos": Measured(0.9, 0.9, 600)})
CLASSES = ClassifyConfig()
TUNED = {"tune-late": Measured(0.85, 0.81, 600), "tune-packaged": Measured(0.8, 0.9, 300)}
CELLS = (
    Cell(
        "roads", 300, 4, 100, grey=False,
        results={"probe-photos": Measured(0.90, 0.90, 10), "tune-packaged": Measured(0.88, 0.95, 60)},
    ),
    Cell("solar", 3000, 2, 300, grey=True, results={"probe-photos": Measured(0.79, 0.83, 60), **TUNED}),
    Cell(
        "digits", 2000, 10, 28, grey=True,
        results={"probe-photos": Measured(0.94, 0.95, 60), "tune-packaged": Measured(0.98, 0.93, 200)},
    ),
)  # fmt: skip


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "measured", lambda: CELLS)


def test_the_table_of_the_package_has_known_settings_and_possible_numbers() -> None:
    for cell in measured():
        assert cell.results.keys() <= SETTINGS.keys()
        assert cell.images > 0
        assert all(min(row) > 0 and max(row.validation, row.test) <= 1 for row in cell.results.values())


def test_the_table_of_the_package_gives_every_size_of_images_weights_to_start_from() -> None:
    for side in (20, 60, 100, 300, 2000):
        for images in (20, 500, 20_000):
            assert first_try(images, 2, Sampled(side, side, grey=False), cells=measured()).setting.start


def test_a_set_can_be_left_out_of_what_decides_about_it() -> None:
    like = Sampled(28, 28, grey=True)
    assert first_try(2000, 10, like, cells=CELLS).name == "tune-packaged"
    assert first_try(2000, 10, like, cells=CELLS[:1]).name == "probe-photos"


@pytest.mark.usefixtures("cells")
@pytest.mark.parametrize(
    ("images", "side", "grey", "expected"),
    [(200, 120, False, "probe-photos"), (2500, 280, True, "tune-late"), (1500, 32, True, "tune-packaged")],
)
def test_the_nearest_sets_decide(images: int, side: int, grey: bool, expected: str) -> None:
    found = first_try(images, 5, Sampled(side, side, grey=grey))
    assert found.setting is SETTINGS[expected]
    assert "%" in found.note
    assert "--from" in found.note


@pytest.mark.usefixtures("cells")
def test_what_takes_too_long_on_a_cpu_is_left_to_a_gpu() -> None:
    like, many = Sampled(280, 280, grey=True), 20_000
    assert first_try(many, 2, like, on_cpu=True).setting is SETTINGS["probe-photos"]
    assert first_try(many, 2, like, on_cpu=False).setting is SETTINGS["tune-late"]


@pytest.mark.usefixtures("cells")
def test_whoever_names_epochs_gets_what_trains_for_epochs() -> None:
    seen, data = Sampled(100, 100, grey=False), photos(40)
    chosen = [
        first_try_for(data, seen, changes, CLASSES, device=CPU)
        for changes in ({}, {"seed": 3}, {"epochs": 3}, {"optimiser.lr": 0.1})
    ]
    assert [one is not None and one.name for one in chosen] == ["probe-photos"] * 2 + ["tune-packaged"] * 2


@pytest.mark.usefixtures("cells")
def test_only_where_nothing_is_named_and_a_linear_head_answers() -> None:
    seen, data = Sampled(100, 100, grey=False), photos(40)
    assert first_try_for(data, seen, {"epochs": 3}, CLASSES, device=CPU) is not None
    assert first_try_for(data, seen, {"options": {}}, CLASSES, device=CPU) is None
    assert first_try_for(data, seen, {}, MAEConfig(), device=CPU) is None
    assert first_try_for(data, Sampled(0, 0, grey=False), {}, CLASSES, device=CPU) is None


@pytest.mark.usefixtures("cells")
@pytest.mark.parametrize(
    ("target", "task"),
    [(NumbersTarget(names=("n",)), RegressConfig()), (LabelsTarget(classes=("red", "round")), CLASSES)],
    ids=["numbers", "labels"],
)
def test_numbers_and_labels_begin_with_a_linear_head(target: NumbersTarget | LabelsTarget, task: TaskConfig) -> None:
    values = (torch.rand(40, 1) if task.kind == "regress" else torch.rand(40, 2) > 0.5).float()
    data = Made(photos(40, size=96).array, {target.field: values}, {target.field: target})
    seen = Sampled(96, 96, grey=False)
    found = first_try_for(data, seen, {}, task, device=CPU)
    assert found is not None
    assert found.setting is SETTINGS["probe-photos"]
    trained = first_try_for(data, seen, {"sampling": "balanced"}, task, device=CPU)
    if task.kind == "regress":
        assert trained is None, "training of a new model, as it was asked for"
    else:
        assert trained is not None
        assert trained.setting == first_try(40, 2, seen, fitted=False).setting
        assert "one class" in trained.note
    plan = make_plan(split(data))
    assert (plan.start, plan.config.probe) == (PHOTOS, "linear")


@pytest.mark.usefixtures("cells")
def test_a_plan_starts_with_it_and_says_so(tmp_path: Path) -> None:
    plan = make_plan(split(photos(40, size=96)))
    assert plan.start == PHOTOS
    assert plan.config.probe == "linear"
    assert any("no model was named" in note for note in plan.notes)
    with pytest.warns(HeadNotice, match="replaced"):
        small = make_plan(split(grey_squares(64, size=28)), changes={"epochs": 3})
    assert (small.start, small.config.epochs) == ("packaged", 3)
    assert make_plan(split(photos(40)), model="vit32_small").start is None


def test_a_cpu_that_would_take_too_long_tries_no_other_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a machine with a GPU, where the run is on its CPU."""
    monkeypatch.setattr(table, "measured", lambda: (SLOW,))
    monkeypatch.setattr(table, "SMALL", 8)
    monkeypatch.setattr("vitrail.hardware.device", lambda *_: GPU)
    monkeypatch.setattr("vitrail.training.plan.choose_device", lambda asked=None: asked or GPU)
    data = split(photos(40))
    found = [first_try_on(data.train, device=device) for device in (CPU, GPU)]
    assert [one is not None and (one.name, one.sizes) for one in found] == [
        ("probe-photos", ()), ("probe-photos", (256,)),
    ]  # fmt: skip
    assert [make_plan(data, device=device).sizes for device in (CPU, GPU, None)] == [(), (256,), (256,)]


def test_without_a_table_it_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "measured", lambda: ())
    plan = make_plan(split(photos(40)))
    assert (plan.start, plan.config.model) == (None, "vit32_conv")


@pytest.mark.usefixtures("cells")
def test_data_that_are_named_have_a_first_try_where_it_was_measured(tmp_path: Path) -> None:
    found = first_try_on(find(class_folders(tmp_path)).train, device=CPU)
    assert found is not None
    assert "which did best" in found.note
    (tmp_path / "numbers").mkdir()
    numbers = first_try_on(find(numbers_table(tmp_path / "numbers")).train, device=CPU)
    assert numbers is not None
    assert "linear head" in numbers.note


@pytest.mark.usefixtures("cells")
def test_what_a_run_does_by_default_is_told_with_its_network(tmp_path: Path) -> None:
    for name, make in (("numbers", numbers_table), ("boxes", boxes_table)):
        (tmp_path / name).mkdir()
        about, network = default_on(find(make(tmp_path / name)).train, device=CPU)
        assert ("linear head" in about) == (name == "numbers")
        assert (network == PHOTOS) == (name == "numbers")
