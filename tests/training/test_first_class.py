"""What training does with nothing named on another kind of device: image sizes only where they end in time."""

import pytest
from support.small_data import photos, split
from support.task_data import numbers_table

from vitrail.data.sources.opening import find
from vitrail.training import first_try as table
from vitrail.training.first_class import first_class
from vitrail.training.first_try import Cell, Measured

SLOW = Cell("roads", 40, 2, 100, grey=False, results={"probe-photos": Measured(0.9, 0.9, 600)})


def test_a_cpu_that_would_take_too_long_tries_no_other_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "measured", lambda: (SLOW,))
    monkeypatch.setattr(table, "SMALL", 8)
    data = split(photos(40)).train
    found = {kind: first_class(data, kind) for kind in ("cpu", "cuda")}
    assert found["cpu"] is not None
    assert found["cuda"] is not None
    assert (found["cpu"].name, found["cpu"].sizes) == ("probe-photos", ())
    assert found["cuda"].sizes == (256,)


def test_other_targets_and_an_empty_table_have_none(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert first_class(split(photos(40)).train, "cpu") is None  # no sets were measured, in tests
    monkeypatch.setattr(table, "measured", lambda: (SLOW,))
    assert first_class(find(numbers_table(tmp_path, count=12)).train, "cpu") is None
