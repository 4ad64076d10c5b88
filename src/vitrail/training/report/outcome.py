"""What a training run was and what came of it, as a page, and in short for a terminal and JSON."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from vitrail.files import write_atomically
from vitrail.report import (
    Code,
    Facts,
    Figure,
    Gallery,
    Group,
    Metric,
    Picture,
    Report,
    Section,
    Table,
    Text,
    Value,
    page,
)
from vitrail.report.markup import environment
from vitrail.report.sections import skipped_table
from vitrail.report.styles import css
from vitrail.report.values import Unit, duration
from vitrail.training.report.curves import History, chosen_epoch, training_curves, values_of

_PACKAGE = "vitrail.training.report"
_SKIPPED_MOST = 100  # unreadable images that a page lists
_COST_OPEN = 2  # sections of the cost that are not folded
_SPLITS = {"test": "test split", "validation": "validation split, which also chose the best epoch"}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a training run was, and what came of it; everything but the title may be missing.

    `history` has one row an epoch, as metrics.jsonl keeps them: epoch, seconds, lr, images_per_second, waiting (a share
    of the time), and losses and metrics as "train/loss", "val/accuracy"; `metrics` says how each of these is shown.
    `lead` is the result in a sentence, `split` names the images it was measured on: "test" or "validation". `figures`
    and `sections` come from the task. `model` describes a model that is not a plain preset. `recipe` is plain: dicts,
    lists, text, numbers.
    """

    title: str
    model: str = ""
    lead: str = ""
    split: str = ""
    command: str = ""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Value] = field(default_factory=dict)
    notes: Sequence[str] = ()
    history: History = ()
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    best_metric: str = ""  # of the history's "val/...": what the best model was chosen by
    best_epoch: int | None = None  # whose model was kept; None: the one with the best value
    figures: Mapping[str, Figure] = field(default_factory=dict)
    sections: Sequence[Section] = ()
    cost: Report | None = None
    skipped: Sequence[tuple[str, str]] = ()  # name of an image that could not be read, and the reason
    seconds: Mapping[str, float] = field(default_factory=dict)  # by phase: where the time went


def summary(outcome: Outcome) -> Report:
    """The run in short, without pictures: for the terminal and for JSON."""
    sections: list[Section] = []
    if figures := _figures(outcome):
        values = {name: figure.value for name, figure in figures.items()}
        sections.append(Facts("Result", values, {name: figure.unit for name, figure in figures.items()}))
    sections += _without_pictures(outcome.sections)
    if outcome.history:
        columns = {name: _unit(name, outcome.metrics) for row in outcome.history for name in row}
        sections.append(Table("Epochs", columns, outcome.history))
    if outcome.seconds:
        sections.append(_where_time_went(outcome.seconds))
    if outcome.skipped:
        sections.append(skipped_table("Images that could not be read", outcome.skipped))
    if outcome.notes:
        sections.append(_notes(outcome.notes))
    if outcome.command:
        sections.append(Code("Command", outcome.command))
    return Report(outcome.title, tuple(sections))


def outcome_page(outcome: Outcome) -> str:
    """The run as one HTML page that needs no network and no script."""
    sections = tuple(_page_sections(outcome))
    body = (
        environment(_PACKAGE)
        .get_template("training.html")
        .render(
            title=outcome.title,
            lead=_lead(outcome),
            model=outcome.model,
            figures=_figures(outcome).values(),
            sections=sections,
        )
    )
    shared = [css(name) for name in ("colours", "charts", "sections")]
    return page(outcome.title, body, style="\n".join([*shared, css("training", _PACKAGE)]))


def write_report(outcome: Outcome, path: str | Path) -> Path:
    """Writes the page to a file, whole or not at all, and returns its path."""
    path, text = Path(path), outcome_page(outcome)
    write_atomically(path, lambda new: new.write_text(text, encoding="utf-8", errors="backslashreplace"))
    return path


def _page_sections(outcome: Outcome) -> Iterator[Section]:
    if outcome.notes or outcome.skipped:
        members: list[Section] = [Text("", _notes(outcome.notes).text)] if outcome.notes else []
        if count := len(outcome.skipped):
            title = f"{count:,} {'image' if count == 1 else 'images'} could not be read and left out"
            members.append(skipped_table(title, outcome.skipped[:_SKIPPED_MOST], folded=True))
        yield Group("Notes", tuple(members))
    curves = training_curves(outcome.history, outcome.metrics, outcome.best_metric, outcome.best_epoch)
    if curves is not None:
        yield curves
    yield from outcome.sections
    if outcome.cost is not None:
        yield Group("Cost", tuple(_cost(outcome.cost)))
    if outcome.seconds:
        yield _where_time_went(outcome.seconds)
    if again := tuple(_reproduce(outcome)):
        yield Group("Reproduce", again)


def _where_time_went(seconds: Mapping[str, float]) -> Table:
    """Each phase with its share of the time until the report."""
    total = sum(seconds.values()) or 1.0
    rows: list[dict[str, Value]] = [
        {"phase": name, "seconds": round(value, 2), "share": value / total} for name, value in seconds.items()
    ]
    return Table("Time", {"phase": "", "seconds": "", "share": "share"}, rows, bars=True)


def _figures(outcome: Outcome) -> dict[str, Figure]:
    """The figures of the task, what the best epoch was chosen by, the time that training took, and its median speed."""
    seconds, speed = values_of(outcome.history, "seconds"), values_of(outcome.history, "images_per_second")
    found = dict(outcome.figures)
    name, metric = outcome.best_metric, outcome.metrics.get(outcome.best_metric)
    chosen = chosen_epoch(outcome.history, name, outcome.metrics, outcome.best_epoch)
    if outcome.split == "test" and metric is not None and chosen is not None:
        found[f"val/{name}"] = Figure(chosen[1], f"validation {metric.title}", metric.unit, "chose the best epoch")
    if seconds:
        found["training time"] = Figure(duration(sum(seconds)), "training time", meaning=_epochs(outcome.history))
    if speed:
        found["images per second"] = Figure(round(median(speed)), "images per second", meaning="in training, median")
    return found


def _lead(outcome: Outcome) -> str:
    """The result in a sentence, where it was measured, and how long training took."""
    if not outcome.lead:
        return ""
    words = outcome.lead.rstrip(".")
    if outcome.split:
        words += f" ({_SPLITS.get(outcome.split, outcome.split)})"
    if seconds := values_of(outcome.history, "seconds"):
        words += f", after {_epochs(outcome.history)} in {duration(sum(seconds))}"
    return f"{words}."


def _epochs(rows: History) -> str:
    return "1 epoch" if len(rows) == 1 else f"{len(rows):,} epochs"


def _notes(notes: Sequence[str]) -> Text:
    return Text("Notes", "\n".join(f"- {note}" for note in notes))


def _cost(report: Report) -> Iterator[Section]:
    """The first sections of the cost, and the others folded."""
    for index, section in enumerate(report.sections):
        yield replace(section, title="") if index < _COST_OPEN else replace(section, folded=True)


def _reproduce(outcome: Outcome) -> Iterator[Section]:
    if outcome.command:
        yield Code("", outcome.command)
    if outcome.recipe:
        plain = _plain(outcome.recipe)
        written = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100)
        yield Code("Recipe", written.rstrip(), folded=True)
    if outcome.environment:
        yield Facts("Environment", outcome.environment, folded=True)


def _without_pictures(sections: Sequence[Section]) -> Iterator[Section]:
    for section in sections:
        if isinstance(section, Group):
            if members := tuple(_without_pictures(section.sections)):
                yield Group(section.title, members, section.columns)
        elif not isinstance(section, Picture | Gallery):
            yield section


def _unit(name: str, metrics: Mapping[str, Metric]) -> Unit:
    if name == "waiting":
        return "share"
    metric = metrics.get(name.rpartition("/")[2])
    return "" if metric is None else metric.unit


def _plain(value: Any) -> Any:
    """Dicts, lists, text and numbers, as YAML can write them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | None) else str(value)
