"""`vitrail.train`: a run, or a search with minutes."""

import inspect
from pathlib import Path

import pytest
from support.small_data import photos, split
from support.task_case import TINY
from support.task_data import class_folders

import vitrail
from vitrail.errors import ConfigError
from vitrail.training.run import Run
from vitrail.training.tuning import Tuned


def test_minutes_make_a_search_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    data = class_folders(tmp_path)
    found = vitrail.train(data, minutes=0.001, folder=tmp_path / "tuned", silent=True, epochs=1, **TINY)
    assert isinstance(found, Tuned)
    again = vitrail.train(folder=tmp_path / "tuned", resume=True, silent=True)
    assert again.chosen == found.chosen
    run = vitrail.train(data, folder=tmp_path / "run", silent=True, epochs=1, **TINY)
    assert isinstance(run, Run)


def test_what_only_one_run_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fold"):
        vitrail.train("demo", minutes=1, fold=(1, 2))
    with pytest.raises(ConfigError, match="name"):
        vitrail.train(split(photos(8)), minutes=1, folder=tmp_path)


def test_help_shows_every_option() -> None:
    names = list(inspect.signature(vitrail.train).parameters)
    assert {"data", "model", "group", "minutes", "resume"} <= set(names)
    assert names[-1] == "changes"
