"""The page of a cross-validation: metrics over folds with intervals, each fold, and what was held out, all together."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.report import Facts, Metric, Report, Section, Table, Text, Unit, Value
from vitrail.runs.evaluate import numbers
from vitrail.runs.trained import TrainedModel
from vitrail.training.folds.out_of_fold import Fold, Score

_ABOUT = (
    "Every image was predicted once, by the model whose fold held it out; its fold chose neither the best epoch nor a "
    "threshold. The interval of the mean takes folds as independent, although they share training images, so it is a "
    "little too narrow. That of all images resamples images, or groups where images are in groups."
)


@dataclass(frozen=True, kw_only=True)
class CrossValidation:
    """Folds that are over: their models, the metrics of what they held out, and the ensemble, where there is one."""

    folder: Path
    folds: tuple[Fold, ...]
    pooled: Mapping[str, Any]  # metrics of all images together
    scores: tuple[Score, ...]
    ensemble: TrainedModel | None

    def report(self) -> Path:
        """Writes report.html into the folder and returns its path."""
        file = self.folder / "report.html"
        Report(f"{self.folder.name}: {len(self.folds)} folds", folds_sections(self)).to_html(file)
        return file

    def __str__(self) -> str:
        name = self.folds[0].model.task.best_metric
        score = next(one for one in self.scores if one.name == name)
        low, high = score.interval
        text = f"{len(self.folds)} folds: mean {name} {score.mean:.4f} (95 % interval {low:.4f} to {high:.4f})"
        if score.pooled_interval is not None:
            low, high = score.pooled_interval
            text += f"; all images together {score.pooled:.4f} ({low:.4f} to {high:.4f})"
        return text


def folds_sections(found: CrossValidation) -> tuple[Section, ...]:
    """The scores, the folds, the ensemble, and the task's own sections for all images together."""
    task = found.folds[0].model.task
    return (
        Text("Out of fold", _ABOUT),
        _scores(found.scores, task.about_metrics),
        _folds(found),
        _ensemble(found),
        *task.sections(found.pooled),
    )


def _scores(scores: tuple[Score, ...], about: Mapping[str, Metric]) -> Table:
    rows: list[dict[str, Value]] = []
    for one in scores:
        low, high = one.interval
        all_low, all_high = one.pooled_interval or (None, None)
        title = about[one.name].title if one.name in about else one.name
        rows.append({
            "metric": title, "mean of folds": one.mean, "deviation": one.deviation, "95 % low": low, "95 % high": high,
            "all images": one.pooled, "its low": all_low, "its high": all_high,
        })  # fmt: skip
    columns: dict[str, Unit] = dict.fromkeys(rows[0], "") if rows else {"metric": ""}
    return Table("Metrics of held-out images", columns, tuple(rows))


def _folds(found: CrossValidation) -> Table:
    name = found.folds[0].model.task.best_metric
    rows: list[dict[str, Value]] = []
    for fold in found.folds:
        metrics = numbers(fold.meter.compute())
        rows.append({"fold": fold.number, "images": len(fold.ids), name: metrics.get(name), "run": fold.model.source})
    return Table("Folds", dict.fromkeys(rows[0], ""), tuple(rows))


def _ensemble(found: CrossValidation) -> Section:
    if found.ensemble is None:
        return Text("Ensemble", "Answers of this task have no mean: the folds are separate models.")
    count = sum(parameter.numel() for parameter in found.ensemble.task.parameters())
    one = sum(parameter.numel() for parameter in found.folds[0].model.task.parameters())
    text = "averages the probabilities; every image trained all but one of its models, so none is left to test it on"
    return Facts(
        "Ensemble",
        {"folder": str(found.folder), "models": len(found.folds), "parameters": count, "of one": one, "it": text},
        {"parameters": "si", "of one": "si"},
    )
