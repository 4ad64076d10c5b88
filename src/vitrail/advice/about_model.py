"""Which model, how it compares with others that were measured, how close the case is to them, and what to expect."""

from collections.abc import Iterator, Sequence

from vitrail.advice.choose import NEAR, Candidate, Judged, order
from vitrail.advice.facts import DataFacts
from vitrail.advice.regret import FAR, difference
from vitrail.advice.rows import Row
from vitrail.advice.sentence import Sentence
from vitrail.report import show
from vitrail.report.metric import show_interval


def near_rows(best: Judged) -> tuple[Row, ...]:
    """The rows that a result is expected from."""
    return best.candidate.rows[:NEAR]


def model(facts: DataFacts, best: Judged, ranked: Sequence[Judged], rows: Sequence[Row]) -> Iterator[Sentence]:
    """Which model, and how close the case is to what was measured."""
    near = near_rows(best)
    about = best.candidate.about
    sizes = [best.candidate.image_size, *((one, one) for one in best.candidate.sizes)]
    known = " or ".join(" x ".join(map(str, one)) for one in sizes if one is not None)
    size = f", at {known} pixels" if known else ""
    text = f"Model, weights, recipe, image size: {about[:1].lower()}{about[1:]} ({best.candidate.name}){size}"
    if not near:
        yield Sentence(f"{text}. No set of task {facts.task!r} is among those that were measured.", outside=True)
        return
    if len(ranked) == 1:
        yield Sentence(f"{text}, the only one that was measured for task {facts.task!r}.", near)
    else:
        yield _compared(text, best)
        yield from _better(facts, best, ranked, rows)
    yield from _beyond(facts, best)


def _compared(text: str, best: Judged) -> Sentence:
    """How the choice compares with others, where sets like the data tell it."""
    points = best.points
    if points is None:
        why = f"{'it was not' if best.doubt else 'nothing else was'} measured on sets like these data"
        return Sentence(
            f"{text}. How far it is from the best is not known: {why}.", near_rows(best), outside=bool(best.doubt)
        )
    like = best.candidate.like
    which = f"The setting that it begins with ({like})" if best.candidate.sizes else f"It (as {like})" if like else "It"
    below = _points(abs(points.share))
    was = "the best" if points.share == 0 else f"{below} below the best"
    over = f"{_of_sets(points.sets)} like these data on which others were measured, too"
    mean = f"on average over {over}, near ones counting most" if points.sets > 1 else f"on {over}"
    return Sentence(
        f"{text}. {which} was {was} in validation, {mean}.",
        points.rows[:NEAR],
    )


def _better(facts: DataFacts, best: Judged, ranked: Sequence[Judged], rows: Sequence[Row]) -> Iterator[Sentence]:
    """What would come first without the limits, and by how much it was better where both were measured."""
    first = min(ranked, key=order)
    if first.fits or first is best:
        return
    why = f"beyond the limits: {', '.join(first.too_much)}"
    found = difference(first.candidate.measured_as, best.candidate.measured_as, facts, rows)
    name = first.candidate.name
    if first.candidate.like == best.candidate.name:
        yield _larger(first, best, why)
    elif found is None:
        told = f"Without the limits it would be {name}; by how much that is better is not known. It is {why}."
        yield Sentence(told, first.candidate.rows[:NEAR], outside=True)
    elif found.share <= 0:
        yield Sentence(
            f"Without the limits it would be {name}, which was not better on near sets. It is {why}.", found.rows
        )
    else:
        with_ = f" (as {first.candidate.like})" if first.candidate.like else ""
        yield Sentence(
            f"{name}{with_} was better by {_points(found.share)} in validation on {_of_sets(found.sets)} like these "
            f"data on which both were measured, but is {why}.",
            found.rows[: 2 * NEAR],
        )
    if best.candidate.scratch and best.doubt:
        yield Sentence(
            f"{best.candidate.name} learns from random weights, and nothing that starts from trained weights is known "
            f"to keep the limits. It was measured with {best.candidate.rows[0].values['images']:,} images, and here "
            f"are {facts.images:,}: do not count on it; raise the limits if you can.",
            best.candidate.rows[:1],
            outside=True,
        )


def _larger(first: Judged, best: Judged, why: str) -> Sentence:
    """What is lost where the default is left out for the head that it begins with: larger images."""
    own = {row.set: row for row in best.candidate.rows}
    pairs = [(row, own[row.set]) for row in first.candidate.rows if row.set in own][:NEAR]
    gain = sum(one.values["test"] - other.values["test"] for one, other in pairs) / len(pairs) if pairs else 0.0
    return Sentence(
        f"Without the limits it would be {first.candidate.name}: the same head, with larger images where folds of the "
        f"training images are better with them. On the {_of_sets(len(pairs))} most alike its test accuracy was "
        f"{_points(abs(gain))} {'higher' if gain >= 0 else 'lower'} on average. It is {why}.",
        tuple(row for pair in pairs for row in pair),
    )


def _points(share: float) -> str:
    return f"{100 * share:.1f} points"


def _of_sets(count: int) -> str:
    return f"{count} set{'s' if count != 1 else ''}"


def _beyond(facts: DataFacts, best: Judged) -> Iterator[Sentence]:
    """How the case differs from all sets that were measured."""
    if differences := _differences(facts, best.candidate):
        yield Sentence(f"This case: {'; '.join(differences)}.", best.candidate.rows[:1], outside=True)


def _differences(facts: DataFacts, candidate: Candidate) -> list[str]:
    """Why the case lies outside of what was measured of a candidate."""
    nearest = candidate.rows[0]
    outside = [*_outside(facts, candidate.rows), *_longer(candidate, nearest)]
    if facts.distance(nearest.values) > FAR:
        outside.append(f"the nearest set, {nearest.set}, is unlike these data")
    return outside


def _outside(facts: DataFacts, rows: Sequence[Row]) -> Iterator[str]:
    """In which respect data lie beyond all sets on which something was measured."""
    for name, value in (("images", facts.images), ("classes", facts.classes), ("pixels", facts.pixels)):
        known = [row.values[name] for row in rows if row.values.get(name) is not None]
        if known and not min(known) <= value <= max(known):
            ends = dict.fromkeys((f"{min(known):,}", f"{max(known):,}"))
            yield f"{value:,} {name}, measured with {' to '.join(ends)}"


def _longer(candidate: Candidate, row: Row) -> Iterator[str]:
    """How the training itself differs from what was measured."""
    if candidate.work(row) != 1.0 and candidate.image_size is not None:
        here, there = (" x ".join(map(str, one)) for one in (candidate.image_size, row.values["image_size"]))
        yield f"{candidate.epochs} epochs at {here} pixels, measured with {row.values['epochs']} at {there}"


def expected(facts: DataFacts, best: Judged, rows: Sequence[Row]) -> Iterator[Sentence]:
    """The range of the result on near sets."""
    near = near_rows(best)
    if not near:
        yield Sentence("Expected accuracy: not known.", outside=True)
        return
    if best.doubt and best.candidate.scratch:
        row = near[0]
        there = f"{show(row.values['test'], 'share')} on {row.set}, from {row.values['images']:,} images there"
        yield Sentence(f"Expected accuracy: not known. It was {there}.", near[:1], outside=True)
        return
    tests = [row.values["test"] for row in near]
    metric, names = near[0].values["metric"], ", ".join(dict.fromkeys(row.set for row in near))
    span = show(min(tests), "share") if len(tests) == 1 else show_interval((min(tests), max(tests)), "share")
    alike = f"sets most alike in size, number and colour of images ({names})" if len(near) > 1 else f"one set, {names}"
    text = f"Expected: {near[0].values.get('on', 'test')} {metric} {span}, its result on the {alike}."
    checks = [row for row in rows if row.kind == "check" and near[0].values["task"] == row.values["task"]]
    if checks and len(near) > 1:
        held = " and ".join(
            f"on {row.values['inside']} of {row.values['sets']} {row.values['which']}" for row in checks
        )
        text, near = f"{text} Such a range held {held}: how hard your classes are is not known.", (*near, *checks)
    elif len(near) == 1:
        text = f"{text} One set says little about yours."
    yield Sentence(text, near, outside=bool(_differences(facts, best.candidate)))
