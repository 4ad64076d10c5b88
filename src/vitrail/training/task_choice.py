"""Which task a run has: the one that was asked for, or the one that the data suggest."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.config import from_dict
from vitrail.data.dataset import Dataset, Retargeted, Splits
from vitrail.data.sources.opening import survey
from vitrail.data.sources.table import Wanted
from vitrail.data.split import check
from vitrail.errors import ConfigError, nearest
from vitrail.tasks.task import TaskConfig, infer

RENAMED = "pretrain"  # another key for the task of a recipe that learns from images alone
TaskChoice = str | Mapping[str, Any] | TaskConfig


class Spec(NamedTuple):
    """The kind of a task, None for what the data suggest, and its options.

    `defaults` come from a recipe that names no kind: a task takes those that it has. `options` must all be its own.
    """

    kind: str | None
    options: Mapping[str, Any]
    defaults: Mapping[str, Any]


class _Given(NamedTuple):
    """The task as one source gives it."""

    kind: str | None
    options: Mapping[str, Any]

    def changed_by(self, new: "_Given") -> "_Given":
        """Both together; another kind drops the options of the kind before it."""
        if new.kind in (None, self.kind) or self.kind is None:
            return _Given(new.kind or self.kind, {**self.options, **new.options})
        return new


def split_spec(
    recipe: Mapping[str, Any], changes: Mapping[str, Any] | None = None, *, task: TaskChoice | None = None
) -> tuple[dict[str, Any], dict[str, Any], Spec]:
    """A recipe and changes to it without their `task`, and the task that all of them give together."""
    plain, given = _taken_out(recipe)
    changed, explicit = _taken_out(changes or {})
    explicit = explicit.changed_by(_parsed(task))
    if given.kind is None:
        spec = Spec(explicit.kind, explicit.options, given.options)
    else:
        spec = Spec(*given.changed_by(explicit), {})
    if spec.kind is not None and spec.kind not in TaskConfig.kinds:
        raise ConfigError(f"unknown task {spec.kind!r}; {nearest(spec.kind, TaskConfig.kinds)}")
    return plain, changed, spec


def _taken_out(recipe: Mapping[str, Any]) -> tuple[dict[str, Any], _Given]:
    plain, found = dict(recipe), _Given(None, {})
    for name in (RENAMED, "task"):
        found = found.changed_by(_parsed(plain.pop(name, None)))
    return plain, found


def _parsed(task: TaskChoice | None) -> _Given:
    if task is None:
        return _Given(None, {})
    if isinstance(task, TaskConfig):
        return _Given(task.kind, {name: getattr(task, name) for name in option_names(type(task))})
    given = {"kind": task} if isinstance(task, str) else dict(_mapping(task))
    kind = given.pop("kind", None)
    return _Given(None if kind is None else str(kind), given)


def option_names(task: type[TaskConfig]) -> list[str]:
    """The names of a task's options."""
    return [field.name for field in fields(task)]  # type: ignore[arg-type]


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"task is {value!r}; it must be the name of a task, or a mapping of its options")
    return value


def open_for_task(
    data: str | Path | Splits,
    spec: Spec,
    *,
    columns: tuple[str, ...] = (),
    val: str | Path | float | None = None,
    seed: int = 0,
) -> tuple[Splits, Wanted]:
    """The data with the targets that the task learns from, checked; and how they were read."""
    kinds = () if spec.kind is None else _class(spec.kind).target_kinds
    wanted = Wanted(columns, kinds, targets=spec.kind is None or bool(kinds))
    splits = data if isinstance(data, Splits) else survey(data, val=val, seed=seed, wanted=wanted)
    if spec.kind is not None and not kinds:
        splits = splits._replace(
            train=_unlabelled(splits.train),
            val=_unlabelled(splits.val),
            test=None if splits.test is None else _unlabelled(splits.test),
        )
    return (splits if isinstance(data, Splits) else check(splits)), wanted


def _unlabelled(dataset: Dataset) -> Dataset:
    return Retargeted(dataset, {}, {}) if dataset.schema else dataset


def choose_task(spec: Spec, splits: Splits, *, has_teacher: bool) -> tuple[TaskConfig, list[str]]:
    """The task's config, and notes on how it was chosen; with a teacher, the kind that learns from one."""
    schema = splits.train.schema
    kind = infer(schema) if spec.kind is None else _class(spec.kind)
    if has_teacher and kind.student is not None:
        kind = _class(kind.student)
    found = from_dict(kind, {**_defaults(kind, spec.defaults), **spec.options}, "task")
    assert isinstance(found, TaskConfig)  # noqa: S101  (registered as such)
    learned = ", ".join(target.describe() for target in found.learns(schema).values())
    if not learned:
        return found, [f"task: {kind.kind}; labels are not read, and the model gets no head"]
    why = " (inferred from the data; --task overrides)" if spec.kind is None else ""
    return found, [f"task: {kind.kind}, {learned}{why}"]


def _defaults(kind: type[TaskConfig], given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a recipe that names no kind, without those that only other tasks have."""
    every = {name for one in TaskConfig.kinds for name in option_names(_class(one))}
    own = option_names(kind)
    return {name: value for name, value in given.items() if name in own or name not in every}


def _class(kind: str) -> type[TaskConfig]:
    found = TaskConfig.kinds[kind]
    assert issubclass(found, TaskConfig)  # noqa: S101  (registered as such)
    return found
