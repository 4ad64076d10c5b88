import shutil
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from vitrail.errors import ConfigError, Notice
from vitrail.lab import running
from vitrail.lab.running import run_experiment
from vitrail.lab.temperature import Temperature
from vitrail.locks import locked


def test_what_is_there_is_not_measured_again(tmp_path: Path) -> None:
    said: list[str] = []
    first = run_experiment(Temperature(), quick=True, seeds=2, folder=tmp_path, say=said.append)
    again = run_experiment(Temperature(), quick=True, seeds=3, folder=tmp_path, say=said.append)
    assert said == [f"temperature: seed {seed}" for seed in range(3)]
    assert again.record.runs[:2] == first.record.runs
    assert "--seeds 3" in again.record.command


def test_what_other_code_has_measured_is_measured_again_and_this_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    run_experiment(Temperature(), quick=True, seeds=2, folder=tmp_path)
    monkeypatch.setattr(running, "fingerprint", lambda experiment: "another")
    for notices in (2, 0):  # the second time it is there
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = run_experiment(Temperature(), quick=True, seeds=2, folder=tmp_path, say=said.append)
        assert [notice.category for notice in caught] == [Notice] * notices
        assert all("again" in str(notice.message) for notice in caught)
    assert found.record.fingerprint == "another"
    assert len(said) == 2
    assert len(list(tmp_path.iterdir())) == 2


def test_two_at_once_measure_a_seed_once(tmp_path: Path) -> None:
    """Whoever waits for the lock of a seed reads what its holder has measured."""
    said: list[str] = []
    first = run_experiment(Temperature(), quick=True, seeds=1, folder=tmp_path / "a")
    (measured,) = (tmp_path / "a").iterdir()
    held = tmp_path / "b" / measured.name
    held.parent.mkdir()
    options = {"quick": True, "seeds": 1, "folder": held.parent, "say": said.append}
    with ThreadPoolExecutor(1) as pool:
        with locked(held.with_suffix(".lock"), what="it"):
            waiting = pool.submit(run_experiment, Temperature(), **options)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.3)
            shutil.copy(measured, held)
        assert waiting.result(timeout=60).record == first.record
    assert said == []
    assert list(held.parent.iterdir()) == [held]


def test_a_seed_gives_the_same_again_and_leaves_random_numbers_alone(tmp_path: Path) -> None:
    before = torch.random.get_rng_state()
    runs = [run_experiment(Temperature(), quick=True, seeds=1, folder=tmp_path / name) for name in "ab"]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert runs[0].record.results == runs[1].record.results


def test_no_seeds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seeds"):
        run_experiment(Temperature(), quick=True, seeds=0, folder=tmp_path)
