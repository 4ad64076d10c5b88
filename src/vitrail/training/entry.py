"""`vitrail.train`: one run, or with `minutes` a search for the best one in that time."""

import inspect
import sys
from pathlib import Path
from typing import Any, overload

from vitrail.errors import ConfigError
from vitrail.training import run as single
from vitrail.training.one_run import check_new_run
from vitrail.training.plan import Source
from vitrail.training.run import Run
from vitrail.training.tuning import Tuned, tune
from vitrail.training.tuning.journal import is_tuned

_OF_ONE_RUN = ("fold", "shard", "sinks", "ledger")


@overload
def train(data: Source | None = None, *, minutes: None = None, **options: Any) -> Run:  # noqa: D418
    """One run."""


@overload
def train(data: Source | None = None, *, minutes: float, **options: Any) -> Tuned:  # noqa: D418
    """A search."""


def train(data: Source | None = None, *, minutes: float | None = None, **options: Any) -> Run | Tuned:
    """Trains a model on data and returns it; with `minutes`, the best of several trials in that time.

    `data` is a folder of images, a table, arrays or a known name; `task` is inferred from them, and `label` names the
    column of a table with the target. Keywords change the recipe: model="vit_small_patch16", epochs=20,
    optimiser={"lr": 1e-4}. `start` names weights to fine-tune, `teacher` a model to learn from as well. `group` keeps
    images together that belong together: a column, a pattern of their paths, or "duplicates". `resume` continues the
    run or the search in `folder`, as if it had never stopped.
    """
    folder = options.get("folder")
    if minutes is None and not (options.get("resume") and folder is not None and is_tuned(folder)):
        if not options.get("resume"):
            check_new_run(folder)
        return single.train(data, **options)
    if given := [name for name in _OF_ONE_RUN if options.get(name)]:
        raise ConfigError(f"minutes and {', '.join(given)} cannot be used together")
    say = None if options.pop("silent", False) else _say
    return tune(None if data is None else _named(data), minutes=minutes, say=say, **options)


def _named(data: Source) -> str | Path:
    if isinstance(data, str | Path):
        return data
    raise ConfigError("minutes need the name of the data: a folder of images, a table, arrays, or a known name")


def _say(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201


def _signature() -> inspect.Signature:
    """That of a single run, with `minutes`: what `help` shows."""
    known = inspect.signature(single.train)
    *named, rest = known.parameters.values()
    minutes = inspect.Parameter("minutes", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="float | None")
    return known.replace(parameters=[*named, minutes, rest], return_annotation="Run | Tuned")


train.__signature__ = _signature()  # type: ignore[attr-defined]
