"""The image size of a linear head where nothing was named: folds choose it, where there is time."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.small_data import photos, split

from vitrail.packaged import PHOTOS
from vitrail.training import first_try as table
from vitrail.training import probe_size
from vitrail.training.first_model import Sampled
from vitrail.training.first_try import Cell, Measured, first_try
from vitrail.training.folds import train_folds
from vitrail.training.linear_head import Fit
from vitrail.training.plan import make_plan
from vitrail.training.probe_size import clearly_less, resized
from vitrail.training.run import train

CELLS = (Cell("roads", 300, 4, 100, grey=False, results={"probe-photos": Measured(0.9, 0.9, 60)}),)


@pytest.fixture(autouse=True)
def _table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(table, "measured", lambda: CELLS)


def test_only_larger_images_have_sizes_to_choose_from_and_only_where_there_is_time() -> None:
    def sizes(images: int, side: int, *, on_cpu: bool = True) -> tuple[int, ...]:
        return first_try(images, 4, Sampled(side, side, grey=False), on_cpu=on_cpu, cells=CELLS).sizes

    assert sizes(300, 100) == (256,)
    assert sizes(300, 64) == ()
    assert sizes(3000, 100) == ()  # 10 minutes at one size
    assert sizes(3000, 100, on_cpu=False) == (256,)


@pytest.mark.parametrize("best", [160, 256])
def test_the_size_with_the_least_loss_on_held_out_images_is_taken(
    best: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def fit(task, known, *, groups) -> Fit:
        assert groups is None
        seen.append(task.backbone.config.image_size[0])
        return Fit(1.0, mirrored=False, losses=(0.1 if seen[-1] == best else 0.2,) * 3, width=1)

    monkeypatch.setattr(probe_size, "fit_head", fit)
    data = split(photos(24, size=80), val=8)
    run = train(data, folder=tmp_path / "run", device="cpu", silent=True)
    assert seen == [160, 256]
    assert run.config.image_size == (best, best)
    assert run.backbone.config.image_size == run.preprocess.image_size == (best, best)
    assert any(f"chose {best} x {best}" in note for note in run.plan.notes)
    other = {160, 256} - {best}
    assert not any(f"resized to {size} x {size}" in note for note in run.plan.notes for size in other)


def test_a_plan_of_another_size_has_the_same_weights_and_no_further_choice() -> None:
    plan = make_plan(split(photos(24, size=80)))
    assert (plan.start, plan.sizes) == (PHOTOS, (256,))
    larger = resized(plan, 256)
    assert (larger.preprocess.image_size, larger.sizes) == ((256, 256), ())
    before, after = plan.bare().state_dict(), larger.bare().state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_few_images_have_no_folds_that_could_choose(tmp_path: Path) -> None:
    run = train(split(photos(5, size=80), val=8), folder=tmp_path / "run", device="cpu", silent=True)
    assert run.config.image_size in (None, (160, 160))
    assert not any("folds" in note for note in run.plan.notes)


@pytest.mark.parametrize("size", [256, (256, 256), 160])
def test_a_size_to_choose_from_can_be_named(size: int | tuple[int, int]) -> None:
    plan = make_plan(split(photos(24, size=80)), changes={"image_size": size})
    assert (plan.start, plan.sizes, plan.config.probe) == (PHOTOS, (), "linear")
    assert size in (plan.preprocess.image_size, plan.preprocess.image_size[0])


@pytest.mark.parametrize("size", [96, (160, 256)])
def test_another_size_is_of_a_new_model(size: int | tuple[int, int]) -> None:
    assert make_plan(split(photos(24, size=80)), changes={"image_size": size}).start is None


def test_folds_have_the_size_that_the_first_of_them_chooses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def fit(task, known, *, groups) -> Fit:
        tried.append(task.backbone.config.image_size[0])
        return Fit(1.0, mirrored=False, losses=(1 / tried[-1],) * 3, width=1)  # the larger one is better

    monkeypatch.setattr(probe_size, "fit_head", fit)
    draw = np.random.default_rng(0)
    for number in range(32):
        file = tmp_path / "photos" / ("dark", "light")[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (80, 80, 3), dtype=np.uint8)).save(file)
    found = train_folds(tmp_path / "photos", folds=2, folder=tmp_path / "run", device="cpu", silent=True)
    assert tried == [160, 256]
    assert [fold.model.preprocess.image_size for fold in found.folds] == [(256, 256)] * 2
    assert all(fold.model.record.start == PHOTOS for fold in found.folds)
    assert found.ensemble is not None


def test_a_larger_size_has_to_be_better_by_more_than_a_standard_error() -> None:
    assert clearly_less((0.09, 0.05, 0.05), (0.14, 0.08, 0.07))
    assert not clearly_less((0.004, 0.002, 0.004), (0.012, 0.004, 0.001))  # the third fold says otherwise
    assert not clearly_less((0.1, 0.1, 0.1), (0.1, 0.1, 0.1))
