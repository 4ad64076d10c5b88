"""The facts of data that advice rests on: from their splits and from the doctor's audit."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitrail.data.dataset import Dataset, Splits
from vitrail.data.targets import Schema
from vitrail.errors import BrokenImage, ConfigError, nearest
from vitrail.report import Facts as Section
from vitrail.report import Report, Text
from vitrail.tasks import TaskConfig
from vitrail.tasks.task import infer

_SAMPLED = 16
_LIMIT = "leave out the limit"  # which is the doctor's, not that of advice
_LEAST, _MOST = 16, 256  # pixels: images outside of this are like those at its ends


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """What the data are; `pixels` is the median longer side, `imbalance` the largest class over the smallest."""

    source: str
    task: str
    targets: str
    images: int  # of training
    classes: int
    pixels: int
    grey: bool
    imbalance: float | None = None
    duplicates: int = 0
    across: int = 0  # pairs, identical or similar, in two splits
    unreadable: int = 0
    doctor: tuple[str, ...] = ()  # its advice

    def distance(self, values: Mapping[str, Any]) -> float:
        """How unlike a measured set is: doublings of the size and, for half as much, of the number of images."""
        sizes = [math.log2(min(max(one, _LEAST), _MOST)) for one in (self.pixels, values["pixels"])]
        counts = [math.log2(max(one, 1)) for one in (self.images, values["images"])]
        return abs(sizes[0] - sizes[1]) + abs(counts[0] - counts[1]) / 2 + (self.grey != values["grey"]) / 2


def facts_of(
    source: str, splits: Splits, audit: Report, seen: tuple[int, bool], *, task: str | None = None
) -> DataFacts:
    """The facts of data, as the doctor and a `look` found them."""
    kind = _task(splits.train.schema, task)
    pixels, grey = seen
    doubles = audit["Duplicates"]
    overview, advice = audit["Data"], audit["Advice"]
    assert isinstance(doubles, Section)  # noqa: S101  (the doctor writes it so)
    assert isinstance(overview, Section)  # noqa: S101
    assert isinstance(advice, Text)  # noqa: S101
    counts = {name: int(value or 0) for name, value in doubles.values.items()}
    return DataFacts(
        source=source,
        task=kind,
        targets="; ".join(target.describe() for target in splits.train.schema.values()) or "none",
        images=len(splits.train),
        classes=max((len(getattr(target, "classes", ())) for target in splits.train.schema.values()), default=0),
        pixels=pixels,
        grey=grey,
        imbalance=_imbalance(splits.train),
        duplicates=counts["identical, within a split"],
        across=counts["identical, across splits"] + counts["similar, across splits"],
        unreadable=int(overview.values["unreadable"] or 0),
        doctor=tuple(line for line in advice.text.splitlines() if line != "No problems found." and _LIMIT not in line),
    )


def known_task(named: str) -> type[TaskConfig]:
    """The task of that name; ConfigError where labels alone do not suggest such a task, so that none was measured."""
    kinds: dict[str, Any] = {name: kind for name, kind in TaskConfig.kinds.items() if getattr(kind, "inferred", False)}
    if named in kinds:
        return kinds[named]
    if named in TaskConfig.kinds:
        raise ConfigError(f"advise does not support task {named!r}; choose one of {', '.join(kinds)}")
    raise ConfigError(f"unknown task {named!r}; {nearest(named, kinds)}")


def _task(schema: Schema, named: str | None) -> str:
    """The task that was named, or that the data suggest; ConfigError where the data have no targets for it."""
    if named is None:
        return str(infer(schema).kind)
    known_task(named)().learns(schema)
    return named


def look(data: Dataset) -> tuple[int, bool]:
    """The median longer side of a few images, and whether all are grey; BrokenImage where none can be read."""
    sides, grey = [], True
    for index in range(0, len(data), max(len(data) // _SAMPLED, 1)):
        try:
            shape = data.read(index).shape
        except BrokenImage:
            continue
        sides.append(max(shape[1:]))
        grey = grey and shape[0] == 1
    if not sides:
        raise BrokenImage(f"none of the images of {data.name} that were tried can be read; see `vitrail doctor`")
    return round(statistics.median(sides)), grey


def _imbalance(data: Dataset) -> float | None:
    """The largest class over the smallest, where images have classes."""
    for name, target in data.schema.items():
        if getattr(target, "classes", None) and target.kind == "class":
            strata = list(target.strata(data.targets[name]))
            counts = [strata.count(one) for one in set(strata)]
            return max(counts) / min(counts) if counts else None
    return None
