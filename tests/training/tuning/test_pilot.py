"""What an epoch costs: known in steps, timed in seconds; and how many of them fit."""

from pathlib import Path

import pytest
import torch
from support.small_data import photos, split
from support.task_case import PLAN

from vitrail.training.plan import make_plan
from vitrail.training.tuning.pilot import Pace, PacesBySize, seconds_of, steps_of
from vitrail.training.tuning.trial_run import prepared, without_test

CPU = torch.device("cpu")


def test_as_many_epochs_as_fit() -> None:
    pace = Pace(epoch=10, fixed=5)
    assert [pace.epochs(amount, 3) for amount in (-1, 14, 15, 34, 35, 1000)] == [0, 0, 1, 2, 3, 3]
    assert pace.cost(3) == 35


def test_larger_images_are_not_timed_where_smaller_ones_already_take_too_long() -> None:
    paces, timed = PacesBySize(), list[int]()

    def costs(pixels: int, way: str = "fine-tuning") -> float:
        def time_it() -> Pace:
            timed.append(pixels)
            return Pace(epoch=10, fixed=5)

        return next(paces.paces((way,), pixels, time_it)).epoch

    assert costs(32 * 32) == 10
    assert costs(128 * 128) == 160
    assert costs(16 * 16) == 10  # what smaller ones cost is not known
    assert costs(128 * 128, "low-rank updates") == 10
    assert timed == [32 * 32, 16 * 16, 128 * 128]


@pytest.mark.filterwarnings("ignore::vitrail.errors.HeadNotice")
@pytest.mark.parametrize("probe", [None, "linear"])
def test_seconds_are_timed_and_nothing_is_left_behind(
    probe: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    start = "packaged" if probe else None
    changes = {name: value for name, value in PLAN.items() if name != "options"} | {"probe": probe}
    model = None if probe else "vit32_small"
    plan = make_plan(split(photos(40), test=4), model=model, start=start, changes=changes)
    plan = without_test(plan)
    assert plan.data.test is None
    pace = seconds_of(plan, prepared(plan, tmp_path / "run"), CPU)
    assert pace.epoch > 40 * pace.forward > 0
    assert not (tmp_path / "run").exists()
    assert steps_of(plan) == Pace(40 // plan.config.batch_size, 0)
