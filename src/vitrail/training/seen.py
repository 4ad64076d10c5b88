"""Whether a run has met some images before: a score on these says little of others."""

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from vitrail.data.dataset import Dataset, Splits
from vitrail.data.source import open_data
from vitrail.data.table import SUFFIXES as TABLES
from vitrail.errors import VitrailError
from vitrail.training.trained import place_of

_REST = "what it does with new images is not measured here"


def met_before(run: str, source: str, images: Dataset) -> str | None:
    """A sentence on how many of the images of a source a run learned from; None where they are new to it.

    Images are the same where they lie in the same place: copies of them elsewhere are taken for others.
    """
    file = Path(place_of(run)) / "run.json"
    about = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    sources = [name for name in (about.get("source"), about.get("val")) if isinstance(name, str)]
    places = set(_places(images))
    known = any(name == source or _within(name, places) for name in sources)
    if not known and not any(_may_name(name) for name in sources):
        lost = [name for name in sources if _same_name(name, source)]
        return f"{run} was trained on {lost[0]}: if these are the same images, {_REST}" if lost else None
    try:
        splits = open_data(about["source"], val=about["val"], seed=about["recipe"]["seed"])
    except VitrailError:
        told = f"{run} was trained on {sources[0]} too, which cannot be read as it was then: {_REST}"
        return told if known else None
    return _counted(run, about, splits, places)


def _counted(run: str, about: dict[str, Any], splits: Splits, places: set[str]) -> str | None:
    learned, judged = (len(places.intersection(_places(part))) for part in (splits.train, splits.val))
    if not learned and not judged:
        return None
    if about.get("learned") != splits.train.fingerprint:
        return f"{run} was trained on {about['source']} too, which has changed since: {_REST}"
    what = [f"learned from {learned:,}"] if learned else []
    what += [f"chose its best epoch by {judged:,}"] if judged else []
    return f"of these {len(places):,} images, {run} {' and '.join(what)}: {_REST}"


def _places(data: Dataset) -> Iterator[str]:
    """Where each image lies, however the way there was written."""
    real = cache(os.path.realpath)
    for index in range(len(data)):
        folder, name = os.path.split(data.where(index))
        yield os.path.join(real(folder), name)  # noqa: PTH118  (hot loop)


def _within(source: str, places: set[str]) -> bool:
    """Whether some of the places lie in a source that is a folder, or in its file."""
    there = Path(source).expanduser().resolve()
    start = f"{there}{os.sep}" if there.is_dir() else str(there)
    return there.exists() and any(place.startswith(start) for place in places)


def _may_name(source: str) -> bool:
    """Whether a source is a table, whose images may lie anywhere: only reading it tells."""
    there = Path(source).expanduser()
    return there.suffix.lower() in TABLES and there.is_file()


def _same_name(first: str, second: str) -> bool:
    """Whether a source that is not to be found from here ends like another."""
    return not Path(first).expanduser().exists() and Path(first).name == Path(second).name
