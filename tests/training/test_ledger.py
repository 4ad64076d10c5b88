"""Every second of a run belongs to one phase."""

import time

import pytest

from vitrail.training import ledger as module
from vitrail.training.ledger import FIRST_STEP, OTHER, Ledger, process_seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def test_inner_phases_are_not_counted_twice(clock: list[float]) -> None:
    ledger = Ledger()
    clock[0] = 1
    with ledger.phase("train"):
        clock[0] = 4
        with ledger.phase("validate"):
            clock[0] = 9
        clock[0] = 10
    with ledger.phase("validate"):
        clock[0] = 12
    clock[0] = 13
    assert ledger.seconds == {"train": 4, "validate": 7, OTHER: 2}
    assert list(ledger.seconds)[-1] == OTHER


def test_a_phase_that_fails_is_counted(clock: list[float]) -> None:
    ledger = Ledger()
    with pytest.raises(ValueError, match="no"), ledger.phase("open"):
        clock[0] = 2
        raise ValueError("no")
    clock[0] = 3
    assert ledger.seconds == {"open": 2, OTHER: 1}


def test_the_sentence_leaves_out_what_took_no_time(clock: list[float]) -> None:
    ledger = Ledger()
    assert "less" in ledger.sentence()
    with ledger.phase("train"):
        clock[0] = 5
    with ledger.phase("report"):
        clock[0] += 0.01
    assert "train 5.0 s" in ledger.sentence()
    assert "report" not in ledger.sentence()


def test_the_process_began_before_its_tests() -> None:
    passed = process_seconds()
    assert passed is None or 0 < passed < 24 * 3600
    assert "import" in Ledger.of_process().seconds or passed is None


def test_systems_that_do_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Path", lambda _: (_ for _ in ()).throw(OSError))
    assert process_seconds() is None
    assert "import" not in Ledger.of_process().seconds


def test_the_sentence_says_when_the_first_step_was_done(clock: list[float]) -> None:
    ledger = Ledger()
    for phase, seconds in [("open", 1), (FIRST_STEP, 2), ("train", 4)]:
        with ledger.phase(phase):
            clock[0] += seconds
    assert ledger.until == {"open": 1, FIRST_STEP: 3, "train": 7}
    assert ledger.sentence().endswith("; first step done after 3.0 s")
