"""Evaluation: how good a model is on images it has not learned from, how sure of itself, and how fast."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.data.batches import Batches
from vitrail.errors import ConfigError
from vitrail.models.backbone import Backbone
from vitrail.report import Facts, Report, Section, Table, Text, Unit, Value
from vitrail.tasks.predict import as_task
from vitrail.tasks.task import Task
from vitrail.training.evidence import interval

MOST_MISTAKES = 20  # pairs of classes that a report lists
_WIDEST = 20  # classes whose confusion matrix still fits a page


class Measured(NamedTuple):
    """The metrics of one pass over the images, and how long it took."""

    results: Mapping[str, Any]
    seconds: float
    waited: float  # for data
    device: str

    @property
    def images_per_second(self) -> float:
        """Images from memory to metrics in a second."""
        return self.results["images"] / self.seconds


@torch.inference_mode()
def measure(
    task: Task, batches: Batches, *, prepare: Callable[[Tensor], Tensor], dtype: torch.dtype | None = None
) -> Measured:
    """One pass over stored images (uint8 B C H W), which `prepare` makes the model's input of.

    `dtype` is the precision of matrix products, None for that of the weights. The task is left in the mode in which
    it came.
    """
    learning = task.training
    task.eval()
    meter, device = task.metrics(), batches.device
    waited, began = batches.waited, time.perf_counter()
    try:
        for batch in batches.epoch(0):
            with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
                outputs = task.outputs(prepare(batch.images))
            meter.update(outputs.float(), batch.labels)
        results = meter.compute()  # waits for the device
    finally:
        task.train(learning)
    return Measured(results, time.perf_counter() - began, batches.waited - waited, str(device))


def evaluate(
    model: Task | Backbone,
    batches: Batches,
    *,
    prepare: Callable[[Tensor], Tensor],
    dtype: torch.dtype | None = None,
) -> Report:
    """Accuracy with its 95 % interval, metrics by class, mistakes, calibration and speed of a model or task."""
    task, packed = as_task(model), batches.packed
    if task.classes != packed.classes:
        raise ConfigError(
            f"the model tells {_few(task.classes)}, the images of {packed.name} are of {_few(packed.classes)}; give it "
            f"images of the same classes in the same order"
        )
    measured = measure(task, batches, prepare=prepare, dtype=dtype)
    results = measured.results
    several = "ap_of" in results
    sections = _labels(task.classes, results) if several else _classes(task.classes, results)
    speed = Facts(
        "Speed",
        {
            "images per second": measured.images_per_second,
            "seconds": measured.seconds,
            "waiting for data": measured.waited / measured.seconds,
            "device": measured.device,
            "images left out as broken": len(packed.skipped),
        },
        {"images per second": "si", "waiting for data": "share"},
    )
    return Report(f"{packed.name}: {results['images']:,} images", (*sections, speed))


def _few(classes: Sequence[str]) -> str:
    return f"{len(classes)} classes ({', '.join(classes[:5])}{', ...' if len(classes) > 5 else ''})"


def _classes(classes: Sequence[str], results: Mapping[str, Any]) -> list[Section]:
    """The sections of a classifier with one label an image."""
    low, high = interval(results["accuracy"], results["images"])
    values: dict[str, Value] = {"accuracy": results["accuracy"], "95 % interval, from": low, "to": high}
    values |= {"top-5 accuracy": results["top5"]} if "top5" in results else {}
    values |= {
        "balanced accuracy": results["balanced_accuracy"],
        "calibration error (ECE)": results["ece"],
        "negative log likelihood": results["nll"],
    }
    units: dict[str, Unit] = {name: "share" for name in values if name != "negative log likelihood"}
    columns = {"images": "support", "precision": "precision", "recall": "recall", "F1": "f1"}
    sections: list[Section] = [Facts("Result", values, units), _by_class(classes, results, columns)]
    if (confusion := results.get("confusion")) is not None:
        sections += _confused(classes, confusion)
    return [*sections, _calibration(results["bins"])]


def _labels(classes: Sequence[str], results: Mapping[str, Any]) -> list[Section]:
    """The sections of a classifier with several labels an image."""
    names = {"ap": "average precision, mean", "auc": "area under ROC, mean", "f1": "F1 at the thresholds, mean"}
    values: dict[str, Value] = {told: results[name] for name, told in names.items()}
    values |= {"all labels right": results["exact"], "binary cross entropy": results["bce"]}
    units: dict[str, Unit] = {name: "share" for name in values if name != "binary cross entropy"}
    columns = {"images": "support", "AP": "ap_of", "AUC": "auc_of", "precision": "precision", "recall": "recall"}
    sections: list[Section] = [Facts("Result", values, units), _by_class(classes, results, columns | {"F1": "f1_of"})]
    if lone := [classes[label] for label in results["undefined"]]:
        told = (
            f"All images have, or none has: {', '.join(lone)}. These have no AP, AUC and F1, and no part in the means."
        )
        sections.append(Text("Not measured", told))
    return sections


def _by_class(classes: Sequence[str], results: Mapping[str, Any], columns: Mapping[str, str]) -> Table:
    found = {shown: results[name].tolist() for shown, name in columns.items()}
    rows: list[dict[str, Value]] = [
        {"class": label, **{shown: _number(values[index]) for shown, values in found.items()}}
        for index, label in enumerate(classes)
    ]
    units: dict[str, Unit] = {"class": "", **{shown: "" if shown == "images" else "share" for shown in columns}}
    return Table("By class", units, rows)


def _number(value: float) -> Value:
    return None if math.isnan(value) else value


def _confused(classes: Sequence[str], confusion: Tensor) -> Iterable[Table]:
    """The pairs that are mistaken most, and all of them where the classes are few."""
    wrong = confusion.clone().fill_diagonal_(0)
    support = confusion.sum(dim=1)
    worst = wrong.flatten().sort(descending=True, stable=True)
    rows: list[Mapping[str, Value]] = []
    for count, place in zip(worst.values[:MOST_MISTAKES].tolist(), worst.indices.tolist(), strict=False):
        if count:
            truth, said = divmod(place, len(classes))
            share = count / int(support[truth])
            rows.append({"is": classes[truth], "taken for": classes[said], "images": count, "of its class": share})
    if rows:
        yield Table("Mistakes", {"is": "", "taken for": "", "images": "", "of its class": "share"}, rows)
    if len(classes) <= _WIDEST:
        corner = "is \N{RIGHTWARDS ARROW} taken for"
        matrix = [
            {corner: label, **dict(zip(classes, row, strict=True))}
            for label, row in zip(classes, confusion.tolist(), strict=True)
        ]
        yield Table("Confusion", {corner: "", **dict.fromkeys(classes, "")}, matrix)


def _calibration(bins: Tensor) -> Table:
    """How often answers of a confidence are right; bins 3 15."""
    count = bins.shape[1]
    rows = [
        {
            "confidence": f"{place / count:.2f} to {(place + 1) / count:.2f}",
            "images": int(images),
            "mean": sure,
            "right": right,
        }
        for place, (images, sure, right) in enumerate(bins.T.tolist())
        if images
    ]
    return Table("Calibration", {"confidence": "", "images": "", "mean": "share", "right": "share"}, rows)
