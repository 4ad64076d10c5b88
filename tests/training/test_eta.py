"""How long a run will take, from its first steps."""

import pytest
import torch
from support.small_data import photos, split

from vitrail.training.eta import StepTimer, duration, ways_to_shorten
from vitrail.training.plan import make_plan

OPTIONS = {"dim": 32, "depth": 1, "num_heads": 2}


def test_the_first_step_warms_up_and_is_left_out() -> None:
    pace = StepTimer(left=100, began=0.0)
    assert pace.step(1, 3.0) is None
    assert pace.step(5, 4.0) is None  # one second tells too little
    assert pace.step(6, 8.0) == 1.0
    assert pace.step(7, 9.0) is None  # once is enough
    assert pace.epoch(8, 9.0) is None


def test_a_delayed_step_gives_no_estimate_yet() -> None:
    pace = StepTimer(left=100, began=0.0)
    assert [pace.step(1, 0.1), pace.step(2, 3.0), pace.step(3, 3.1)] == [None, None, None]
    assert pace.step(6, 3.6) == pytest.approx(0.7)


def test_a_slow_first_step_gives_an_estimate_unless_it_compiled() -> None:
    assert StepTimer(left=100, began=2.0).step(1, 32.0) == 30.0
    compiled = StepTimer(left=100, began=2.0, compiled=True)
    assert compiled.step(1, 42.0) is None
    assert compiled.step(2, 65.0) == 23.0


def test_an_epoch_that_ends_first_gives_an_estimate_with_validation() -> None:
    assert StepTimer(left=1000, began=0.0).epoch(10, 5.0) == 0.5


def test_a_run_that_is_over_at_once_gives_no_estimate() -> None:
    pace = StepTimer(left=4, began=0.0)
    assert pace.epoch(2, 1.0) is None
    assert pace.reported


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(45.4, "45 s"), (700, "12 min"), (3599, "1 h 0 min"), (9600, "2 h 40 min"), (273_600, "3 days 4 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_ways_to_have_it_ways_to_shorten() -> None:
    plan = make_plan(split(photos(4, size=64)), model="vit_tiny_patch16", changes={"options": OPTIONS})
    advice = ways_to_shorten(plan, torch.device("cpu"), 300.0)
    assert "--image-size 112 (a quarter of the patches); --from packaged-photos" in advice
    assert all(words in advice for words in ("probe=linear", "--from WEIGHTS", "--minutes"))
    assert "--epochs 4 (about 20 min)" in advice
    assert "a GPU" in advice
    odd = make_plan(split(photos(4, size=64)), model="vit_tiny_patch16", changes={"options": OPTIONS, "image_size": 48})
    advice = ways_to_shorten(odd, torch.device("cuda"), 3000.0)
    assert not any(
        words in advice for words in ("--image-size", "--epochs 0", "GPU")
    )  # 24 pixels are not whole patches of 16
