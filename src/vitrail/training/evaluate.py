"""Evaluation: how good a model is on images it has not learned from, how sure of itself, and how fast."""

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
from vitrail.training.evidence import by_class, confusions, interval, left_out

MOST_MISTAKES = 20  # pairs of classes that a report lists
_NAMED = 10  # broken images that it names
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
    broken = _broken(packed.skipped)
    return Report(f"{packed.name}: {results['images']:,} images", (*sections, speed, *broken))


def _broken(skipped: Sequence[tuple[str, str]]) -> Iterable[Table]:
    """The names of images that could not be read, the first ones of many."""
    if skipped:
        few = f", the first {_NAMED} of {len(skipped):,}" if len(skipped) > _NAMED else ""
        yield left_out(f"Images left out as broken{few}", skipped[:_NAMED])


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
    sections: list[Section] = [Facts("Result", values, units), _by_class(classes, results)]
    if (confusion := results.get("confusion")) is not None:
        sections += _confused(classes, confusion)
    return [*sections, _calibration(results["bins"])]


def _labels(classes: Sequence[str], results: Mapping[str, Any]) -> list[Section]:
    """The sections of a classifier with several labels an image."""
    names = {"ap": "average precision, mean", "auc": "area under ROC, mean", "f1": "F1 at the thresholds, mean"}
    values: dict[str, Value] = {told: results[name] for name, told in names.items()}
    low, high = interval(results["exact"], results["images"])
    values |= {"all labels right": results["exact"], "95 % interval, from": low, "to": high}
    values |= {"calibration error (ECE)": results["ece"], "binary cross entropy": results["bce"]}
    units: dict[str, Unit] = {name: "share" for name in values if name != "binary cross entropy"}
    sections: list[Section] = [Facts("Result", values, units), _by_class(classes, results)]
    if lone := [classes[label] for label in results["undefined"]]:
        told = (
            f"All images have, or none has: {', '.join(lone)}. These have no AP, AUC and F1, and no part in the means."
        )
        sections.append(Text("Not measured", told))
    return [*sections, _calibration(results["bins"], "labels")]


def _by_class(classes: Sequence[str], results: Mapping[str, Any]) -> Table:
    rows = by_class(classes, results)
    units: dict[str, Unit] = {name: "" if name in ("class", "images", "threshold") else "share" for name in rows[0]}
    return Table("By class", units, rows)


def _confused(classes: Sequence[str], confusion: Tensor) -> Iterable[Table]:
    """The pairs that are mistaken most, and all of them where the classes are few."""
    if rows := confusions(confusion, classes, MOST_MISTAKES):
        yield Table("Mistakes", {"is": "", "taken for": "", "images": "", "of its class": "share"}, rows)
    if len(classes) <= _WIDEST:
        corner = "is \N{RIGHTWARDS ARROW} taken for"
        matrix = [
            {corner: label, **dict(zip(classes, row, strict=True))}
            for label, row in zip(classes, confusion.tolist(), strict=True)
        ]
        yield Table("Confusion", {corner: "", **dict.fromkeys(classes, "")}, matrix)


def _calibration(bins: Tensor, counted: str = "images") -> Table:
    """How often answers of a confidence are right, or labels of a probability there; bins 3 15."""
    count = bins.shape[1]
    rows = [
        {
            "confidence": f"{place / count:.2f} to {(place + 1) / count:.2f}",
            counted: int(size),
            "mean": sure,
            "right": right,
        }
        for place, (size, sure, right) in enumerate(bins.T.tolist())
        if size
    ]
    return Table("Calibration", {"confidence": "", counted: "", "mean": "share", "right": "share"}, rows)
