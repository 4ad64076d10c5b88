"""run.json and best.json: what a run was and what came of it; one versioned schema, read and written here alone."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vitrail.checksums import check_file, remove_checksums, write_checksums
from vitrail.config import from_dict, split_names, to_dict
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.table import SUFFIXES as TABLES
from vitrail.data.sources.table import Wanted
from vitrail.data.targets import Schema
from vitrail.data.targets.target import schema_from_dict, schema_to_dict
from vitrail.errors import CheckpointError, ConfigError, nearest
from vitrail.files import write_json
from vitrail.models.checkpoint.outline import check_numbers, of_file
from vitrail.strict_json import read_json
from vitrail.tasks import TaskConfig

VERSION = 2
FILE, RESULT = "run.json", "best.json"
# Everything that a model is opened from; logs, reports and the checkpoints of training have no part in it.
FILES = (FILE, RESULT, "model.safetensors", "config.json", "task.safetensors", "calibration.json")


@dataclass(frozen=True, kw_only=True)
class Record:
    """Everything that a run decided, and what is needed to resume, evaluate and use it."""

    recipe: Mapping[str, Any]  # of training, as plain values
    model: Mapping[str, Any]  # family and config
    task: TaskConfig  # what the trained model is for
    schema: Schema
    preprocess: Preprocess
    source: str | None = None  # what the data were opened by, where it was a name
    val: str | float | None = None
    wanted: Wanted = Wanted()  # the columns and kinds of target that were asked for
    learned: str | None = None  # fingerprint of the training images
    start: str | None = None  # weights that it started from
    teacher: str | None = None
    has_teacher: bool = False  # with a name or without
    notes: tuple[str, ...] = ()
    command: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)
    licence: str | None = None
    version: int = VERSION  # of the file that it was read from

    @property
    def seed(self) -> int:
        """The seed, which also decides which images validate the run."""
        try:
            return int(self.recipe["seed"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CheckpointError(f"incomplete run folder: the recipe in {FILE} has no seed") from error

    def write(self, folder: Path) -> None:
        """Writes run.json."""
        stored = {
            "version": VERSION,
            "task": to_dict(self.task),
            "schema": schema_to_dict(self.schema),
            "preprocess": to_dict(self.preprocess),
            "wanted": self.wanted._asdict(),
        }
        remove_checksums(folder)
        write_json(folder / FILE, {"version": VERSION, **vars(self), **stored})

    @classmethod
    def read(cls, folder: str | Path) -> "Record":
        """The record in a folder; CheckpointError where there is none, or it is damaged."""
        file = Path(folder) / FILE
        if not file.is_file():
            raise CheckpointError(f"{folder} is not a run: it has no {FILE}")
        try:
            check_file(file)
            data = read_json(file)
            version = data.setdefault("version", 1)
            if version > VERSION:
                raise CheckpointError(f"{file} has version {version}; this vitrail reads up to {VERSION}: upgrade it")
            return _parsed(data if version == VERSION else _upgraded(data), file)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, ConfigError) as error:
            raise CheckpointError(f"incomplete run folder: {file} is damaged ({error!r:.300})") from error


def wanted_columns(
    record: Record | None, data: str | Path, label: str | Sequence[str] | None = None, *, task: TaskConfig | None = None
) -> Wanted:
    """What is read from data: the columns that were named or that a run was trained on, and the kinds of a task."""
    named = split_names(label)
    table = str(data).lower().endswith(TABLES)
    if table and not named and record is not None and record.wanted.targets:
        return record.wanted
    several = task is not None and task.wanted().several
    return task.wanted(named) if task is not None and (several or not (table or named)) else Wanted(named)


def is_run(folder: str | Path) -> bool:
    """Whether a folder holds the record of a run."""
    return (Path(folder) / FILE).is_file()


def _parsed(data: dict[str, Any], file: Path) -> Record:
    _check_types(data)
    asked = data["wanted"]
    flags = {name: asked[name] for name in ("targets", "several", "group") if name in asked}
    flags |= {"fold": tuple(asked["fold"])} if asked.get("fold") is not None else {}
    wanted = Wanted(tuple(asked["columns"]), tuple(asked["kinds"]), **flags)
    task = dict(data.pop("task"))
    if (kind := task.pop("kind")) not in TaskConfig.kinds:
        raise CheckpointError(f"{file} is of an unknown task {kind!r}; {nearest(str(kind), TaskConfig.kinds)}")
    parsed = from_dict(TaskConfig.kinds[kind], task)
    preprocess = from_dict(Preprocess, data.pop("preprocess"))
    with of_file(file):
        check_numbers((parsed, preprocess))
    assert isinstance(parsed, TaskConfig)  # noqa: S101  (registered as such)
    given = {
        "task": parsed,
        "schema": schema_from_dict(data.pop("schema")),
        "preprocess": preprocess,
        "wanted": wanted,
        "notes": tuple(data.pop("notes", ())),
    }
    return Record(**{**data, **given})


def _check_types(data: Mapping[str, Any]) -> None:
    """ValueError for a value that is used as it is and is of another type."""
    texts = dict.fromkeys(("source", "start", "teacher", "licence", "learned", "command"), (str, type(None)))
    mappings = dict.fromkeys(("recipe", "model", "environment"), (dict,))
    for name, kinds in {**texts, **mappings, "val": (str, float, int, type(None))}.items():
        if name in data and not isinstance(data[name], kinds):
            raise ValueError(f"{name} is a {type(data[name]).__name__}")


def _upgraded(data: dict[str, Any]) -> dict[str, Any]:
    """A record of version 1, which knew classification and pre-training alone, as one of today."""
    recipe = dict(data["recipe"])
    smoothing, pretrain = recipe.pop("label_smoothing", 0.0), recipe.pop("pretrain", None)
    teaching = dict(recipe.pop("distill", None) or {})
    augment = dict(recipe["augment"])
    config = data["model"]["config"]
    mean, std = augment.pop("mean", None), augment.pop("std", None)
    statistics = {} if mean is None else {"mean": mean, "std": std}
    preprocess = {"image_size": config["image_size"], "channels": config["channels"], **statistics}
    task = pretrain or {"kind": "classify", "label_smoothing": smoothing}
    field_name, kind = ("labels", "labels") if data["multi_label"] else ("label", "class")
    schema = {field_name: {"kind": kind, "classes": data["classes"]}} if data["classes"] else {}
    trained = {**task, **teaching, "kind": "distill", "method": teaching["kind"]} if data.get("taught") else task
    recipe |= {"task": trained, "augment": augment, "preprocess": statistics}
    gone = {"classes", "multi_label", "taught"}
    new = {"recipe": recipe, "task": task, "schema": schema, "preprocess": preprocess}
    new |= {"has_teacher": data.get("taught", False)}
    wanted = Wanted()._asdict()
    return {**{name: value for name, value in data.items() if name not in gone}, **new, "wanted": wanted}


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a run: metrics on validation images, on test images (`test_...`), and the state of its task."""

    metrics: Mapping[str, float]
    state: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Writes best.json, and the checksums of all files that the model is in."""
        remove_checksums(folder)
        write_json(folder / RESULT, {"version": VERSION, "metrics": dict(self.metrics), "state": dict(self.state)})
        write_checksums(folder, FILES)

    @classmethod
    def read(cls, folder: str | Path) -> "Result":
        """The result in a folder; CheckpointError where it is damaged or missing."""
        file = Path(folder) / RESULT
        try:
            check_file(file)
            data = read_json(file)
            if "version" not in data:
                data = _upgraded_result(data, Path(folder))
            known = data["metrics"].items()  # one that is undefined is null
            metrics = {name: math.nan if value is None else float(value) for name, value in known}
            return cls(metrics=metrics, state=dict(data["state"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"incomplete run folder: {file} is damaged ({error!r:.300})") from error

    def with_test(self, metrics: Mapping[str, float]) -> "Result":
        """The same with metrics on test images."""
        return replace(self, metrics={**self.metrics, **{f"test_{name}": value for name, value in metrics.items()}})


def _upgraded_result(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Metrics and thresholds of version 1, with the temperature of calibration.json where that is of this model."""
    metrics = {name: value for name, value in data.items() if name != "thresholds"}
    state = {"thresholds": data["thresholds"]} if data.get("thresholds") is not None else {}
    file = folder / "calibration.json"
    if file.is_file():
        stored = read_json(file)
        state |= {"temperature": stored["calibration"]} if stored["of"]["best"] == data else {}
    return {"metrics": metrics, "state": state}
