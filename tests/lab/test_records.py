import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from vitrail.errors import DataError
from vitrail.lab import EXPERIMENTS
from vitrail.lab.booklet import findings_json
from vitrail.lab.records import Record, published, read_record, run_file, write_record
from vitrail.lab.running import run_experiment
from vitrail.lab.temperature import Temperature
from vitrail.strict_json import to_json

EXPERIMENT = Temperature()


def record(folder: Path) -> Record:
    return run_experiment(EXPERIMENT, quick=True, seeds=1, device=torch.device("cpu"), folder=folder).record


def test_a_record_comes_back_from_its_file(tmp_path: Path) -> None:
    made = record(tmp_path)
    write_record(tmp_path / "new" / "one.json", made)
    assert read_record(tmp_path / "new" / "one.json").to_data() == made.to_data()


def test_other_settings_devices_and_seeds_have_other_files() -> None:
    names = {
        run_file(Path(), EXPERIMENT, settings, device=device, seed=seed)
        for settings in (EXPERIMENT.quick, EXPERIMENT.full)
        for device in ("cpu", "cuda")
        for seed in (0, 1)
    }
    assert len(names) == 8


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 1}'])
def test_a_file_that_holds_no_results_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "one.json").write_text(text)
    with pytest.raises(DataError, match="results"):
        read_record(tmp_path / "one.json")


@pytest.mark.parametrize(
    "change",
    [
        {"runs": 3},
        {"runs": []},
        {"runs": [{"seed": "0", "seconds": 1.0, "results": {}}]},
        {"runs": [{"seed": 0, "seconds": 1.0, "results": 5}]},
        {"runs": [{"seed": 0, "seconds": 1.0, "results": {}}]},
        {"runs": [{"seed": 7, "seconds": 1.0, "results": {}}]},
        {"experiment": "low-pass"},
        {"version": 99},
        {"format": 1},
        {"device": {"cpu": 1}},
        {"device": "abacus"},
    ],
)
def test_a_file_that_was_changed_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    record(tmp_path)
    (file,) = tmp_path.glob("*.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(DataError, match="delete it"):
        record(tmp_path)


def test_a_pipe_in_the_place_of_results_is_refused(tmp_path: Path) -> None:
    record(tmp_path)
    (file,) = tmp_path.glob("*.json")
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(DataError, match="regular"):
        record(tmp_path)


def test_what_the_command_prints_can_be_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run_experiment(EXPERIMENT, quick=True, seeds=1, folder=tmp_path / "runs")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / f"{EXPERIMENT.name}.json").write_text(findings_json([found]))
    monkeypatch.setattr("vitrail.lab.records.resources.files", lambda package: tmp_path)
    kept = published(EXPERIMENT)
    assert kept is not None
    assert kept.to_data() == found.record.to_data()
    (tmp_path / "results" / f"{EXPERIMENT.name}.json").write_text(to_json(found.record.to_data()))
    again = published(EXPERIMENT)
    assert again is not None
    assert again.to_data() == kept.to_data()


def test_published_results_can_be_judged_and_drawn() -> None:
    for experiment in EXPERIMENTS:
        if (found := published(experiment)) is not None:
            assert len(found.runs) >= 3
            assert experiment.verdict(found.results).checks
            assert experiment.figures(found.results)
