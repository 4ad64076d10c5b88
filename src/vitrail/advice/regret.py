"""How far a candidate is below the best that was measured on sets like the data; None where no near set tells it."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from vitrail.advice.facts import DataFacts
from vitrail.advice.rows import Row

FAR = 2.0  # distance to the nearest set from which on the data are unlike all that were measured
_ASSUMED = -0.1  # below the best of a set that a candidate was not measured on: it decides an order, and is never said


class Points(NamedTuple):
    """A weighted mean of differences in validation, the sets it is of, and their rows, the nearest first."""

    share: float
    sets: int
    rows: tuple[Row, ...]


def merit(name: str, facts: DataFacts, rows: Sequence[Row]) -> float:
    """What candidates are put in order by: how far below the best of each set in validation, near sets counting most.

    A set on which a candidate was not measured counts as `_ASSUMED`.
    """
    total = weights = 0.0
    for own in _sets(facts, rows):
        best, known = max(_validations(own)), _validations(own, name)
        weight = _weight(facts, own)
        total, weights = total + weight * (max(known) - best if known else _ASSUMED), weights + weight
    return total / weights if weights else 0.0


def below(name: str, facts: DataFacts, rows: Sequence[Row]) -> Points | None:
    """How far a candidate was below the best on near sets, on which another was measured as well."""
    found = [own for own in _near(facts, rows) if _validations(own, name) and len({row.of for row in own}) > 1]
    return _mean(facts, [(own, max(_validations(own, name)) - max(_validations(own))) for own in found], (name,))


def difference(first: str, second: str, facts: DataFacts, rows: Sequence[Row]) -> Points | None:
    """How much better the first was than the second on near sets on which both were measured."""
    found = [own for own in _near(facts, rows) if _validations(own, first) and _validations(own, second)]
    pairs = [(own, max(_validations(own, first)) - max(_validations(own, second))) for own in found]
    return _mean(facts, pairs, (first, second))


def _mean(facts: DataFacts, found: Sequence[tuple[list[Row], float]], names: tuple[str, ...]) -> Points | None:
    if not found:
        return None
    weights = [_weight(facts, own) for own, _ in found]
    share = sum(weight * value for weight, (_, value) in zip(weights, found, strict=True)) / sum(weights)
    return Points(share, len(found), tuple(row for own, _ in found for row in own if row.of in names))


def _sets(facts: DataFacts, rows: Sequence[Row]) -> Iterator[list[Row]]:
    """The results by set for the task of the data, of those with a validation."""
    sets: dict[str, list[Row]] = {}
    for row in rows:
        if row.kind == "result" and row.values["task"] == facts.task and "validation" in row.values:
            sets.setdefault(row.set, []).append(row)
    yield from sets.values()


def _near(facts: DataFacts, rows: Sequence[Row]) -> list[list[Row]]:
    found = [own for own in _sets(facts, rows) if facts.distance(own[0].values) <= FAR]
    return sorted(found, key=lambda own: facts.distance(own[0].values))


def _weight(facts: DataFacts, own: Sequence[Row]) -> float:
    return float(1 / (0.5 + facts.distance(own[0].values)) ** 2)


def _validations(own: Sequence[Row], name: str | None = None) -> list[float]:
    return [row.values["validation"] for row in own if name in (None, row.of)]
