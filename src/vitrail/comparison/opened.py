"""The runs that are compared: their names, models and histories, and whether they can be compared at all."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vitrail.data.targets import Schema
from vitrail.data.targets.target import schema_to_dict
from vitrail.errors import CheckpointError, ConfigError, Notice, reason
from vitrail.files import read_text
from vitrail.runs.paths import checkpoint_path
from vitrail.runs.record import Record, is_run
from vitrail.runs.trained import TrainedModel, open_model
from vitrail.strict_json import from_json

HISTORY = "metrics.jsonl"


@dataclass(frozen=True)
class ComparedRun:
    """A run with the name that reports give it; `history` has a row for each epoch, as metrics.jsonl keeps them."""

    name: str
    folder: Path
    model: TrainedModel
    record: Record
    history: Sequence[Mapping[str, Any]]

    @property
    def missing(self) -> str:
        """A sentence where it has fewer epochs than its recipe names; nothing otherwise."""
        asked, done = self.record.recipe.get("epochs"), max((row.get("epoch") or 0 for row in self.history), default=0)
        if not self.history or not isinstance(asked, int) or done >= asked:
            return ""
        return (
            f"{self.name} has {done:g} of {asked:,} epochs: it stopped early, was stopped, or is still being trained."
        )


def open_runs(folders: Sequence[str | Path], *, device: torch.device) -> list[ComparedRun]:
    """The runs in some folders; ConfigError where they are not of one task with the same targets."""
    if len(folders) < 2:
        raise ConfigError(f"compare needs two runs or more; got {len(folders)}: vitrail compare runs/a runs/b")
    paths = _runs([Path(checkpoint_path(folder)) for folder in folders])
    same = [path.resolve() for path in paths]
    if len({*same}) < len(same):
        raise ConfigError(
            f"the same run was named twice: {next(str(path) for path in paths if _count(path, same) > 1)}"
        )
    names = short_names(paths)
    records = [Record.read(path) for path in paths]
    for name, record in zip(names[1:], records[1:], strict=True):
        check_alike(names[0], records[0], name, record)
    return [_opened(name, path, record, device) for name, path, record in zip(names, paths, records, strict=True)]


def _runs(paths: Sequence[Path]) -> list[Path]:
    """Those that are runs: `runs/*` also names the folder of the lab.

    CheckpointError where a path does not exist, as if misspelt, or fewer than two runs are left.
    """
    runs = [path for path in paths if is_run(path)]
    for path in (path for path in paths if path not in runs):
        if len(runs) < 2 or not path.is_dir():
            raise CheckpointError(f"{path} is not a run: it has no run.json; compare takes folders of `vitrail train`")
        warnings.warn(f"{path} is left out: it is not a run, since it has no run.json", Notice, stacklevel=4)
    return runs


def _count(path: Path, same: Sequence[Path]) -> int:
    return list(same).count(path.resolve())


def check_alike(name: str, record: Record, other: str, second: Record) -> None:
    """ConfigError where two runs learned different things."""
    if record.task.kind != second.task.kind:
        raise ConfigError(
            f"{name} is of task {record.task.kind!r} and {other} of task {second.task.kind!r}: their metrics have "
            "nothing in common; compare runs of one task"
        )
    if _comparable(record.schema) != _comparable(second.schema):
        known, found = (_described(one.schema) for one in (record, second))
        extra = f", such as {_difference(record.schema, second.schema)}" if known == found else ""
        raise ConfigError(
            f"{name} and {other} learned different targets: {known}; {found}{extra}. Compare runs with the same classes"
        )


def _comparable(schema: Schema) -> dict[str, Any]:
    """A schema as plain data, whatever the order of its classes."""
    return {
        field: {key: sorted(map(str, value)) if key in ("classes", "names") else None for key, value in one.items()}
        | {"kind": one["kind"]}
        for field, one in schema_to_dict(schema).items()
    }


def _described(schema: Schema) -> str:
    return "; ".join(target.describe() for target in schema.values()) or "no labels"


def _difference(first: Schema, second: Schema) -> str:
    """A class that one of the schemas has and the other has not."""
    names = [
        {str(name) for target in one.values() for name in getattr(target, "classes", ())} for one in (first, second)
    ]
    return next((repr(name) for name in sorted(names[0] ^ names[1])), "their kinds")


def short_names(paths: Sequence[Path]) -> list[str]:
    """The last parts of paths, as many as tell them apart."""
    whole = [path.resolve().parts for path in paths]
    for count in range(1, max(map(len, whole)) + 1):
        names = ["/".join(parts[-count:]) for parts in whole]
        if len({*names}) == len(names):
            return names
    return [str(path) for path in paths]


def _opened(name: str, path: Path, record: Record, device: torch.device) -> ComparedRun:
    model = replace(open_model(path).to(device), source=str(path))
    return ComparedRun(name, path, model, record, read_history(path))


def read_history(folder: Path) -> list[dict[str, Any]]:
    """The epochs of a run as "train/loss", "val/accuracy", "seconds" ...; none where the run keeps none."""
    file = folder / HISTORY
    if not file.is_file():
        return []
    try:
        return [_epoch(line) for line in read_text(file).split("\n") if line]
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} is damaged ({reason(error)}); {folder} cannot be compared") from error


def _epoch(line: str) -> dict[str, Any]:
    entry = from_json(line)
    if not isinstance(entry, dict):
        raise ValueError("a line is not an object")
    if wrong := [name for name, value in entry.items() if value is not None and type(value) not in (int, float)]:
        raise ValueError(f"{wrong[0][:100]!r} is not a number")
    return entry
