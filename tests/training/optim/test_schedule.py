"""Golden values of the schedule, worked out by hand."""

import pytest

from vitrail.training.config import ScheduleConfig
from vitrail.training.optim.schedule import Schedule


def test_golden_values() -> None:
    schedule = Schedule(total=12, warmup=4, final=0.1)
    factors = [schedule(step) for step in range(12)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    # Half way, a quarter and three quarters down the cosine: (1 + cos(pi t)) / 2 is 0.5, 0.853553, 0.146447.
    assert factors[7] == pytest.approx(0.1 + 0.9 * 0.5)
    assert factors[5] == pytest.approx(0.1 + 0.9 * 0.8535533906)
    assert factors[9] == pytest.approx(0.1 + 0.9 * 0.1464466094)
    assert factors[11] == pytest.approx(0.1)


def test_it_falls_all_the_way_after_the_warm_up() -> None:
    schedule = Schedule.of(ScheduleConfig(warmup_epochs=2, final=0.0), epochs=10, steps=7)
    assert (schedule.total, schedule.warmup) == (70, 14)
    factors = [schedule(step) for step in range(70)]
    assert factors[:14] == sorted(factors[:14])
    assert factors[13:] == sorted(factors[13:], reverse=True)
    assert max(factors) == factors[13] == 1.0


def test_no_warm_up_starts_near_the_peak() -> None:
    schedule = Schedule.of(ScheduleConfig(warmup_epochs=0.0), epochs=1, steps=100)
    assert schedule(0) == pytest.approx(1.0, abs=1e-3)


def test_a_warm_up_longer_than_the_run_takes_half_of_it() -> None:
    schedule = Schedule.of(ScheduleConfig(warmup_epochs=5.0), epochs=1, steps=10)
    assert schedule.warmup == 5
    assert schedule(4) == 1.0
    assert schedule(9) == pytest.approx(0.01)


def test_a_polynomial_by_hand() -> None:
    config = ScheduleConfig(warmup_epochs=1, final=0.1, shape="poly", power=2.0)
    schedule = Schedule.of(config, epochs=5, steps=2)
    assert [schedule(step) for step in (0, 1, 5, 9)] == pytest.approx([0.5, 1.0, 0.1 + 0.9 * 0.25, 0.1])
    straight = Schedule.of(ScheduleConfig(warmup_epochs=0, final=0.0, shape="poly", power=1.0), epochs=1, steps=4)
    assert [straight(step) for step in range(4)] == pytest.approx([0.75, 0.5, 0.25, 0.0])
