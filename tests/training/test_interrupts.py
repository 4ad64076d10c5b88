"""Numbers that are none, and signals."""

import signal
import threading
from collections.abc import Iterator

import pytest
import torch

from vitrail.errors import TrainingError
from vitrail.training.interrupts import FiniteCheck, Signals, leave, refuse

CPU = torch.device("cpu")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_the_first_bad_step_is_remembered(bad: float) -> None:
    check = FiniteCheck(CPU)
    for step, value in enumerate([1.0, 2.0, bad, 3.0, bad]):
        check.watch(step, torch.tensor(1.0), torch.tensor(value))
    assert check.first.item() == 2


def test_good_numbers_pass() -> None:
    check = FiniteCheck(CPU)
    check.watch(0, torch.tensor(1e38), torch.tensor(0.0))
    assert check.first.item() == -1


def test_the_error_names_step_epoch_and_what_is_kept() -> None:
    with pytest.raises(TrainingError, match=r"step 8 \(epoch 3\); the checkpoint of step 5 is kept.*lr"):
        refuse(7, 2, [2, 5])
    with pytest.raises(TrainingError, match="nothing was saved yet"):
        refuse(7, 2, [])


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, which it does not in a job in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_signal_is_noted_and_the_second_acts() -> None:
    with Signals() as signals:
        signal.raise_signal(signal.SIGINT)
        assert signals.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Signals():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_another_thread_leaves_signals_alone() -> None:
    seen = []

    def work() -> None:
        with Signals() as signals:
            seen.append(signals.received)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [0]


def test_exit_codes() -> None:
    with pytest.raises(KeyboardInterrupt):
        leave(signal.SIGINT)
    with pytest.raises(SystemExit) as left:
        leave(signal.SIGTERM)
    assert left.value.code == 143
