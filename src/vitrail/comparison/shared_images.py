"""The images on which runs are compared: their own test images where these are the same, or those that are named."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.comparison.opened import ComparedRun
from vitrail.data.dataset import Dataset, Splits
from vitrail.data.sources.opening import open_whole, survey
from vitrail.errors import ConfigError, DataError
from vitrail.runs.leakage import trained_on
from vitrail.runs.record import wanted_columns

_NAME_OTHERS = "name labelled images that none of them was trained on: --data DATA"


class SharedImages(NamedTuple):
    """Labelled images, what they are, and what limits the comparison."""

    dataset: Dataset
    about: str
    notes: tuple[str, ...] = ()


def named_images(
    runs: Sequence[ComparedRun], data: str | Path, *, label: str | Sequence[str] | None = None
) -> SharedImages:
    """The evaluation images of a source, with a note for each run that was trained on some of them."""
    first = runs[0]
    wanted = wanted_columns(first.record, data, label, task=first.model.task.config)
    dataset = open_whole(data, schema=first.model.task.schema, wanted=wanted)
    notes = [note for run in runs if (note := trained_on(str(run.folder), str(data), dataset)) is not None]
    return SharedImages(dataset, f"{len(dataset):,} images of {data}", tuple(notes))


def own_images(runs: Sequence[ComparedRun]) -> SharedImages:
    """The test images of the runs, else their validation images; ConfigError where these are not the same."""
    read: dict[Any, Splits] = {}
    splits = [_splits_of(run, read) for run in runs]
    tested = [one.test is not None for one in splits]
    parts = [one.val if one.test is None else one.test for one in splits]
    for run, part, test in zip(runs[1:], parts[1:], tested[1:], strict=True):
        if part.fingerprint != parts[0].fingerprint:
            kind = "test" if test and tested[0] else "validation"
            raise ConfigError(
                f"{runs[0].name} and {run.name} have different {kind} images{_why(runs[0], run)}; {_NAME_OTHERS}"
            )
    source = runs[0].record.source
    if tested[0]:
        return SharedImages(parts[0], f"{len(parts[0]):,} test images of {source}")
    for run in runs:
        if getattr(run.record.task, "members", 1) > 1:
            raise ConfigError(f"{run.name} is an ensemble of folds that learned all images of {source}; {_NAME_OTHERS}")
    note = (
        "These validation images also chose the best epoch of each run, so all results here are a little too good. "
        "--data names images that no run has seen."
    )
    return SharedImages(parts[0], f"{len(parts[0]):,} validation images of {source}", (note,))


def _splits_of(run: ComparedRun, read: dict[Any, Splits]) -> Splits:
    """The splits of a run's data as it opened them; those of runs with the same data are opened once."""
    record = run.record
    if record.source is None:
        raise ConfigError(f"{run.name} does not say what it was trained on; {_NAME_OTHERS}")
    key = (record.source, str(record.val), record.seed, record.wanted)
    if key not in read:
        try:
            read[key] = survey(record.source, val=record.val, seed=record.seed, wanted=record.wanted)
        except DataError as error:
            raise ConfigError(
                f"the data of {run.name} cannot be read as they were ({error}); {_NAME_OTHERS}"
            ) from error
    return read[key]


def _why(first: ComparedRun, second: ComparedRun) -> str:
    """What is known of the reason for other images."""
    one, other = first.record, second.record
    if one.source != other.source:
        return f" (of {one.source} and of {other.source})"
    if one.seed != other.seed:
        return f" (drawn with seeds {one.seed} and {other.seed})"
    return ""
