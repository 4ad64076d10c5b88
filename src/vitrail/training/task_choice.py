"""Which task a run has: the one that was asked for, or the one that the data suggest."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from vitrail.config import from_dict
from vitrail.data.dataset import Dataset, Retargeted, Splits
from vitrail.data.sources.opening import survey
from vitrail.data.sources.table import Wanted
from vitrail.data.split import check
from vitrail.errors import ConfigError, nearest
from vitrail.tasks.task import TaskConfig, infer

RENAMED = "pretrain"  # another key for the task of a recipe that learns from images alone
TASKS_KEY = "tasks"  # the key of a recipe that names several tasks for one model
TaskChoice = str | Sequence[str] | Mapping[str, Any] | TaskConfig
_MANY = "many"


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
            return _Given(new.kind or self.kind, _merged(self.options, new.options))
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
    if (several := plain.pop(TASKS_KEY, None)) is not None:
        found = found.changed_by(_Given(_MANY, {TASKS_KEY: _named(several)}))
    return plain, found


def _parsed(task: TaskChoice | None) -> _Given:
    if task is None:
        return _Given(None, {})
    if isinstance(task, TaskConfig):
        return _Given(task.kind, {name: getattr(task, name) for name in option_names(type(task))})
    if isinstance(task, str) and "," not in task:
        return _Given(task, {})
    if isinstance(task, str) or _are_names(task):
        return _Given(_MANY, {TASKS_KEY: _named(task)})
    if not isinstance(task, Mapping):
        raise ConfigError(f"task is {task!r}; it must be the name of a task, a list, or a mapping of its options")
    given = dict(task)
    kind = given.pop("kind", None)
    if isinstance(kind, str) and "," in kind:  # --task a,b beside --set task.balance=...
        kind, given = _MANY, _merged({TASKS_KEY: _named(kind)}, given)
    return _Given(None if kind is None else str(kind), given)


def _named(tasks: Any) -> Any:
    """The names of several tasks, "a,b" or a list, or their options by name."""
    return [name.strip() for name in tasks.split(",")] if isinstance(tasks, str) else tasks


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Options with changes; those of another kind replace the ones before."""
    found = dict(old)
    for name, value in new.items():
        before, given = found.get(name), _named(value) if name == TASKS_KEY else value
        if name == TASKS_KEY and _are_names(before):
            before = {one: {} for one in before}
        if isinstance(before, Mapping) and name == TASKS_KEY and _are_names(given):
            given = {one: before.get(one, {}) for one in given}  # a list replaces the names before
        elif isinstance(before, Mapping) and isinstance(given, Mapping):
            same = given.get("kind", before.get("kind")) == before.get("kind")
            given = _merged(before, given) if same else given
        found[name] = given
    return found


def _are_names(value: Any) -> TypeGuard[Sequence[str]]:
    return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)


def option_names(task: type[TaskConfig]) -> list[str]:
    """The names of a task's options."""
    return [field.name for field in fields(task)]  # type: ignore[arg-type]


def open_for_task(
    data: str | Path | Splits,
    spec: Spec,
    *,
    like: Wanted = Wanted(),  # noqa: B008  (immutable)
    val: str | Path | float | None = None,
    seed: int = 0,
) -> tuple[Splits, Wanted]:
    """The data with the targets that the task learns from, checked; and how they were read.

    `like` names the columns of a table with the target, how images are grouped, and the fold that is held out.
    """
    config = None if spec.kind is None else _config(_class(spec.kind), spec)
    wanted = Wanted(like.columns) if config is None else config.wanted(like.columns)
    wanted = wanted._replace(group=like.group, fold=like.fold)
    if isinstance(data, Splits) and wanted.group is not None:
        raise ConfigError("group cannot be used with splits that were made already; give the name of the data")
    splits = data if isinstance(data, Splits) else survey(data, val=val, seed=seed, wanted=wanted)
    if not wanted.targets:
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
    found = _config(kind, spec)
    learned = ", ".join(_described(splits.train, name) for name in found.learns(schema))
    if not learned:
        return found, [f"task: {kind.kind}; labels are not read, and the model gets no head"]
    why = " (inferred from the data; --task overrides)" if spec.kind is None else ""
    return found, [f"task: {kind.kind}, {learned}{why}"]


def _config(kind: type[TaskConfig], spec: Spec) -> TaskConfig:
    if "goal" in spec.options and "goal" not in option_names(kind):
        raise ConfigError(
            f"task.goal (--goal) is for the choice between classes or labels, and the task is {kind.kind}; leave it out"
        )
    found = from_dict(kind, _merged(_defaults(kind, spec.defaults), spec.options), "task")
    assert isinstance(found, TaskConfig)  # noqa: S101  (registered as such)
    return found


def _described(train: Dataset, name: str) -> str:
    """A target, and how many images have it, if not all do."""
    target, known = train.schema[name], train.schema[name].known(train.targets[name])
    few = "" if bool(known.all()) else f" (of {int(known.sum()):,} of {len(known):,} images)"
    return f"{target.describe()}{few}"


def _defaults(kind: type[TaskConfig], given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a recipe that names no kind, without those that only other tasks have."""
    every = {name for one in TaskConfig.kinds for name in option_names(_class(one))}
    own = option_names(kind)
    return {name: value for name, value in given.items() if name in own or name not in every}


def _class(kind: str) -> type[TaskConfig]:
    found = TaskConfig.kinds[kind]
    assert issubclass(found, TaskConfig)  # noqa: S101  (registered as such)
    return found
