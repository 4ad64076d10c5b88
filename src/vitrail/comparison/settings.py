"""The settings in which runs differ: of the recipe, the data, the weights they started from, and the machine."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.config import from_dict, to_dict
from vitrail.errors import ConfigError
from vitrail.models.registry import FAMILIES
from vitrail.runs.record import Record
from vitrail.strict_json import to_json

ABSENT = "\N{EN DASH}"
_ENVIRONMENT = ("device", "torch", "vitrail", "threads", "processes", "precision")
_STORED = "stored "  # what the run made of a part of its recipe
_OF_SAVING = ("keep", "save_every", "save_steps")  # keys of a recipe that change nothing about the model
_OF_MODEL = ("model", "options", "image_size")  # keys of a recipe that its model follows from


def differing(records: Sequence[Record]) -> dict[str, list[str]]:
    """Dotted names of settings -> the value in each run, as text; only those that are not the same in all."""
    tables = [_settings(record) for record in records]
    keys = list(dict.fromkeys(key for table in tables for key in table))
    found = {key: [table.get(key, ABSENT) for table in tables] for key in keys}
    found = {key: values for key, values in found.items() if len({*values}) > 1}
    follows = any(key.split(".")[0] in (*_OF_MODEL, "start") for key in found)  # the built model, of these
    return {
        key: values
        for key, values in found.items()
        if key.removeprefix(_STORED) not in found.keys() - {key} and not (follows and key.startswith("built model."))
    }


def _settings(record: Record) -> dict[str, str]:
    beside = {"data": record.source, "validation": record.val, "start": record.start, "teacher": record.teacher}
    environment = {key: record.environment[key] for key in _ENVIRONMENT if key in record.environment}
    return dict(_flat({
        **{name: value for name, value in record.recipe.items() if name not in _OF_SAVING},
        **beside,
        f"{_STORED}task": to_dict(record.task),
        f"{_STORED}preprocess": to_dict(record.preprocess),
        "built model": _completed(record.model),
        "machine": environment,
    }))  # fmt: skip


def _completed(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """Family and config of a model, with the defaults of options that are newer than the run."""
    with contextlib.suppress(ConfigError, KeyError, TypeError):  # an option that no longer exists: as it is stored
        return {**model, "config": to_dict(from_dict(FAMILIES[model["family"]].config, model["config"]))}
    return model


def _flat(values: Mapping[str, Any], path: str = "") -> list[tuple[str, str]]:
    """Every leaf by its dotted name, as people write it."""
    rows: list[tuple[str, str]] = []
    for name, value in values.items():
        key = f"{path}.{name}" if path else str(name)
        if isinstance(value, Mapping) and value:
            rows += _flat(value, key)
        else:
            rows.append((key, _text(value)))
    return rows


def _text(value: Any) -> str:
    if value is None or value in ({}, [], ()):
        return ABSENT
    return value if isinstance(value, str) else to_json(value)
