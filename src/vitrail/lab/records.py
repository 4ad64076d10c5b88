"""Results of experiments as files, one for each experiment, settings, device and seed; and published results.

An experiment that is started again with the same folder measures only the seeds that are missing there.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from vitrail.config import to_dict
from vitrail.errors import DataError, reason
from vitrail.files import write_json
from vitrail.lab.experiment import Experiment, Results, Settings
from vitrail.strict_json import from_json, read_json, to_json

_FORMAT = 2
_FIELDS = {"format", "experiment", "fingerprint", "settings", "device", "hardware", "versions", "command", "runs"}


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one seed measured, and how long it took."""

    seed: int
    seconds: float
    results: Results


@dataclass(frozen=True, kw_only=True)
class Record:
    """The runs of an experiment with the same code and settings on the same machine, and the command that made them."""

    experiment: str
    fingerprint: str
    settings: Mapping[str, Any]
    device: str
    hardware: str
    versions: Mapping[str, str]
    command: str
    runs: Sequence[Run]

    @property
    def results(self) -> list[Results]:
        """The results of all seeds."""
        return [run.results for run in self.runs]

    def to_data(self) -> dict[str, Any]:
        """The record as dicts and lists, for JSON."""
        return {"format": _FORMAT} | {name: to_dict(getattr(self, name)) for name in sorted(_FIELDS - {"format"})}

    @classmethod
    def from_data(cls, data: Any, where: str) -> "Record":
        """The record that `to_data` gave; DataError where it is not one."""
        if not isinstance(data, dict) or data.keys() != _FIELDS or data["format"] != _FORMAT:
            raise DataError(f"{where} does not hold results of the lab; delete it, or name another folder")
        fields = {name: data[name] for name in _FIELDS - {"format", "runs"}}
        try:
            torch.device(data["device"])
            runs = tuple(Run(**run) for run in data["runs"])
        except (TypeError, RuntimeError) as error:
            raise DataError(f"{where} does not hold results of the lab: {reason(error):.200}; delete it") from error
        if not all(type(run.seed) is int and isinstance(run.results, dict) for run in runs):
            raise DataError(f"{where} does not hold results of the lab: a run has no seed or no results; delete it")
        return cls(**fields, runs=runs)


def run_file(folder: Path, experiment: Experiment, settings: Settings, *, device: str, seed: int) -> Path:
    """The file of one seed; other settings, another device or format have another name."""
    told = to_json({"format": _FORMAT, "settings": to_dict(settings), "device": device})
    return folder / f"{experiment.name}-{hashlib.sha256(told.encode()).hexdigest()[:10]}-{seed}.json"


def write_record(file: Path, record: Record) -> None:
    """Writes a record completely or not at all; its folder is created."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, record.to_data())


def read_record(file: Path) -> Record:
    """The record in a file; DataError where it holds none."""
    try:
        return Record.from_data(read_json(file), str(file))
    except ValueError as error:
        raise DataError(f"{file} does not hold results of the lab: {error}; delete it") from error


def published(experiment: Experiment) -> Record | None:
    """The results of the full run that the package has, if it has them.

    The file is what `vitrail lab NAME --json` prints, or the record in it alone.
    """
    file = resources.files("vitrail.lab") / "results" / f"{experiment.name}.json"
    if not file.is_file():
        return None
    data = from_json(file.read_text(encoding="utf-8"))
    return Record.from_data(data.get("record", data) if isinstance(data, dict) else data, file.name)
