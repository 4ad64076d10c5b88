"""The report of a training run: one HTML file without network, and the same in short for a terminal and as JSON.

evidence = collect(task, batches, prepare=prepare, classes=classes)
outcome = Outcome(title="...", history=history, evidence=evidence, ...)
write_report(outcome, "runs/demo/report.html")
summary(outcome).print()
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrail.errors import CheckpointError, ConfigError, InputError, TrainingError
from vitrail.models.backbone import Backbone
from vitrail.models.checkpoint.files import write_atomically
from vitrail.profiling import sketch
from vitrail.report import Facts, Report, Section, Table, Text, Value, page, show
from vitrail.training import training_report_parts as parts
from vitrail.training.evidence import Evidence, Rebuilt, Views, confusions, left_out
from vitrail.training.training_report_curves import history
from vitrail.training.training_report_style import STYLE

_CONFUSIONS = 12
_OF_THE_DATA = ("image_size", "channels", "num_classes")  # options that follow from the data


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a training run was, and what came of it; everything but the title may be missing.

    `history` has one row an epoch, as metrics.jsonl keeps them: epoch, seconds, lr, images_per_second, waiting (a share
    of the time), and losses and metrics as "train/loss", "val/accuracy". `metrics` add to those of the evidence, which
    win, so that figures, intervals and tables are of one pass. `model` says in a sentence what a model is that its
    preset's name does not tell. `recipe` is plain: dicts, lists, text, numbers. `no_views` says why nothing shows where
    the model looks; `rebuilt` are pictures of which a task was shown a part.
    """

    title: str
    model: str = ""
    command: str = ""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Value] = field(default_factory=dict)
    notes: Sequence[str] = ()
    history: Sequence[Mapping[str, float | None]] = ()
    best_metric: str = "accuracy"  # of the history's "val/...": what the best model was chosen by
    best_epoch: int | None = None  # the one whose model was kept; None: where that is largest
    metrics: Mapping[str, float] = field(default_factory=dict)
    evidence: Evidence | None = None
    views: Views | None = None
    no_views: str = ""
    rebuilt: Sequence[Rebuilt] = ()
    cost: Report | None = None
    skipped: Sequence[tuple[str, str]] = ()  # name and reason of images that could not be read

    @property
    def figures(self) -> dict[str, float]:
        """The metrics of the evidence, and those that the run adds."""
        seen = self.evidence.metrics if self.evidence else {}
        return {**seen, **{name: value for name, value in self.metrics.items() if name not in seen}}


def name_model(preset: str, options: Mapping[str, Any], model: Backbone) -> tuple[str, str]:
    """What a title calls a model; and, where its options made another size of its preset, a sentence on which."""
    changes = {name: value for name, value in options.items() if name not in _OF_THE_DATA}
    if not changes:
        return preset, ""
    count, config = _parameters(model), model.config
    try:
        usual = sketch(preset, image_size=config.image_size, channels=config.channels, num_classes=config.num_classes)
    except (ConfigError, InputError):  # the preset cannot take such images
        usual = None
    if usual is not None and _parameters(usual) == count:
        return preset, ""
    kind, told = type(model).__name__, ", ".join(f"{name} {_told(value)}" for name, value in changes.items())
    return f"{kind} of {show(count, 'si')} parameters", f"The model is {preset} with {told}."


def _parameters(model: Backbone) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _told(value: Any) -> str:
    """An option's value in a sentence: of a choice its kind, and in brackets what else it says."""
    if isinstance(value, Mapping):
        rest = ", ".join(f"{name} {_told(one)}" for name, one in value.items() if name != "kind")
        return " ".join(part for part in (str(value.get("kind", "")), f"({rest})" if rest else "") if part)
    if isinstance(value, list | tuple):
        return " and ".join(map(_told, value))
    return show(value)


def summary(outcome: Outcome) -> Report:
    """The run in short, without pictures: for the terminal and for JSON."""
    sections: list[Section] = []
    if values := parts.facts(outcome.figures, outcome.history):
        sections.append(Facts("Result", values, {name: parts.unit(name) for name in values}))
    evidence = outcome.evidence
    if evidence is not None:
        if evidence.per_class:
            sections.append(parts.class_table(evidence.per_class))
        if evidence.confusion is not None and (rows := confusions(evidence.confusion, evidence.classes, _CONFUSIONS)):
            sections.append(parts.confusion_table(rows))
    if outcome.history:
        columns = {name: parts.unit(name) for row in outcome.history for name in row}
        sections.append(Table("Epochs", columns, outcome.history))
    if outcome.skipped:
        sections.append(left_out("Images that could not be read", outcome.skipped))
    if outcome.notes:
        sections.append(Text("What was chosen", "\n".join(outcome.notes)))
    if outcome.command:
        sections.append(Text("Command", outcome.command))
    return Report(outcome.title, tuple(sections))


def outcome_page(outcome: Outcome) -> str:
    """The run as one HTML page that needs no network and no script."""
    evidence = outcome.evidence
    blocks: list[tuple[str, str]] = []
    if outcome.notes or outcome.skipped:
        blocks.append(("What was chosen", parts.notes(outcome.notes, outcome.skipped)))
    if charts := history(outcome.history, outcome.best_metric, outcome.best_epoch):
        blocks.append(("How it learned", charts))
    if evidence is not None:
        if evidence.confusion is not None:
            rows = confusions(evidence.confusion, evidence.classes, _CONFUSIONS)
            blocks.append(("What it confuses", parts.matrix(evidence.confusion, evidence.classes, rows)))
        if evidence.per_class:
            blocks.append(("Class by class", parts.classes(evidence.per_class)))
        if any(one.size for one in evidence.calibration):
            blocks.append(("How sure it is", parts.sureness(evidence.calibration, several="exact" in evidence.metrics)))
        if evidence.mistakes:
            blocks.append(("Worst mistakes", parts.mistakes(evidence.mistakes)))
    if outcome.views is not None or outcome.no_views:
        blocks.append(("Where it looks", parts.looks(outcome.views, outcome.no_views)))
    if outcome.rebuilt:
        blocks.append(("What it rebuilds", parts.rebuilding(outcome.rebuilt)))
    if outcome.cost is not None:
        blocks.append(("What it costs", parts.cost(outcome.cost)))
    if outcome.command or outcome.recipe or outcome.environment:
        blocks.append(("Run it again", parts.again(outcome.command, outcome.recipe, outcome.environment)))
    intervals = evidence.intervals if evidence else {}
    images = evidence.images if evidence else None
    head = parts.head(outcome.title, outcome.figures, intervals, outcome.history, images, model=outcome.model)
    return page(outcome.title, parts.layout(head, blocks), style=STYLE)


def write_report(outcome: Outcome, path: str | Path) -> Path:
    """Writes the page to a file, whole or not at all, and gives back where it is."""
    path, text = Path(path), outcome_page(outcome)
    try:
        write_atomically(path, lambda new: new.write_text(text, encoding="utf-8"))
    except CheckpointError as error:  # its words are about weights
        reason = error.__cause__ or "it is a folder"
        raise TrainingError(f"the report cannot be written to {path}: {reason}; give it another place") from error
    return path
