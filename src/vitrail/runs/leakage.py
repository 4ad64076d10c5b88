"""Whether a run was trained on some images: a score on these is not a held-out score."""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from vitrail.data.dataset import Dataset, Splits
from vitrail.data.sources.opening import survey
from vitrail.data.sources.table import SUFFIXES as TABLES
from vitrail.errors import VitrailError
from vitrail.runs.paths import checkpoint_path
from vitrail.runs.record import Record, is_run

_REST = "this is not a held-out score"


def trained_on(run: str, source: str, images: Dataset) -> str | None:
    """A sentence on how many of the images of a source a run was trained or validated on; None where they are new.

    Images are the same where they lie at the same path: copies of them elsewhere are taken for others.
    """
    path = checkpoint_path(run)
    if not is_run(path):
        return None
    record = Record.read(path)
    sources = [name for name in (record.source, record.val) if isinstance(name, str)]
    paths = set(_paths(images))
    known = any(name == source or _within(name, paths) for name in sources)
    if not known and not any(_may_name(name) for name in sources):
        lost = [name for name in sources if _same_name(name, source)]
        return f"{run} was trained on {lost[0]}: if these are the same images, {_REST}" if lost else None
    try:
        splits = survey(str(record.source), val=record.val, seed=record.seed, wanted=record.wanted)
    except VitrailError:
        text = f"{run} was trained on {sources[0]} too, which cannot be read as it was then: {_REST}"
        return text if known else None
    return _counted(run, record, splits, paths)


def _counted(run: str, record: Record, splits: Splits, paths: set[str]) -> str | None:
    trained, validated = (len(paths.intersection(_paths(part))) for part in (splits.train, splits.val))
    if not trained and not validated:
        return None
    if record.schema and record.learned != splits.train.fingerprint:
        return f"{run} was trained on {record.source} too, which has changed since: {_REST}"
    what = [f"was trained on {trained:,}"] if trained else []
    what += [f"chose its best epoch by {validated:,}"] if validated else []
    return f"of these {len(paths):,} images, {run} {' and '.join(what)}: {_REST}"


def _paths(data: Dataset) -> Iterator[str]:
    """Where each image lies, however the way there was written."""
    real = cache(os.path.realpath)
    for index in range(len(data)):
        folder, name = os.path.split(data.where(index))
        yield os.path.join(real(folder), name)  # noqa: PTH118  (hot loop)


def _within(source: str, paths: set[str]) -> bool:
    """Whether some of the paths lie in a source that is a folder, or in its file."""
    there = Path(source).expanduser().resolve()
    start = f"{there}{os.sep}" if there.is_dir() else str(there)
    return there.exists() and any(path.startswith(start) for path in paths)


def _may_name(source: str) -> bool:
    """Whether a source is a table, whose images may be anywhere: it must be read."""
    there = Path(source).expanduser()
    return there.suffix.lower() in TABLES and there.is_file()


def _same_name(first: str, second: str) -> bool:
    """Whether a source that is not to be found from here ends like another."""
    return not Path(first).expanduser().exists() and Path(first).name == Path(second).name
