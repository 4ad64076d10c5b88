"""The tables beside advice: the data, what was chosen between, and the measured rows."""

from collections.abc import Sequence

from vitrail.advice.choose import Judged
from vitrail.advice.facts import DataFacts
from vitrail.advice.rows import Row
from vitrail.report import Facts, Table, Unit, Value
from vitrail.report.values import duration


def data_section(facts: DataFacts) -> Facts:
    """What is known of the data."""
    values: dict[str, Value] = {
        "task": facts.task, "targets": facts.targets, "training images": facts.images, "classes": facts.classes or None,
        "median longer side": facts.pixels, "grey": facts.grey,
        "largest class over smallest": None if facts.imbalance is None else round(facts.imbalance, 1),
        "identical images in a split": facts.duplicates, "identical or similar across splits": facts.across,
        "unreadable": facts.unreadable,
    }  # fmt: skip
    return Facts("Data", {name: value for name, value in values.items() if value is not None})


def engine_of(one: Judged) -> str | None:
    """What its time of an answer is that of; None where that time is not known."""
    if one.latency is None:
        return None
    return "PyTorch" if one.engine is None else str(one.engine.values["engine"])


def candidates_table(ranked: Sequence[Judged]) -> Table:
    """What was chosen between."""
    rows: list[dict[str, Value]] = [
        {
            "candidate": one.candidate.name,
            "points below the best": "not known" if one.points is None else round(100 * abs(one.points.share), 1),
            "on sets": None if one.points is None else one.points.sets,
            "ms an image": None if one.latency is None else round(one.latency, 2),
            "by": engine_of(one),
            "training": None if one.seconds is None else duration(one.seconds) + " (not timed)" * (not one.timed),
            "beyond limits": "; ".join(one.too_much) or "no",
        }
        for one in ranked
    ]
    columns: dict[str, Unit] = dict.fromkeys(rows[0], "")
    return Table("What was chosen between", columns, rows)


def rows_table(rows: Sequence[Row]) -> Table:
    """The measured rows by number."""
    shown: list[dict[str, Value]] = [
        {
            "row": number, "what": row.of, "set": row.set or None, "images": row.values.get("images"),
            "measured": row.text(), "hardware": row.machine, "command": row.command,
        }
        for number, row in enumerate(rows, start=1)
    ]  # fmt: skip
    return Table("Measured rows", dict.fromkeys(shown[0], ""), shown)
