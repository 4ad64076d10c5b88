"""The result of a segmenter for reports: IoU by class, confusion of pixels, worst images."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.report import Group, Matrix, Metric, Section, Table, Text, Unit, Value
from vitrail.tasks.answer import Example
from vitrail.tasks.gallery import example_gallery

METRICS = {
    "miou": Metric("mIoU", "share", "intersection over union, mean over classes, of all pixels together"),
    "pixel_accuracy": Metric("pixel accuracy", "share", "share of pixels whose class is right"),
    "class_accuracy": Metric("class accuracy", "share", "mean over classes of the share of their pixels that is found"),
    "cross_entropy": Metric("cross-entropy", "", higher=False, curve_only=True),
    "dice_loss": Metric("Dice loss", "", higher=False, curve_only=True),
    "lovasz_loss": Metric("Lovasz loss", "", higher=False, curve_only=True),
}
_WORST = "The images with the most wrong pixels, tinted by the class that was found."
_CONFUSED = "Pixels. Rows are the true class, columns the class that was found."


def lead(results: Mapping[str, Any]) -> str:
    """The result in a sentence, without a full stop."""
    accuracy = f"{100 * results['pixel_accuracy']:.1f} % of the pixels right"
    return f"mIoU {results['miou']:.3f}, {accuracy}, on {int(results['images']):,} images"


def sections(
    results: Mapping[str, Any], classes: Sequence[str], *, worst: Sequence[Example] = ()
) -> tuple[Section, ...]:
    """All sections of the results of a MaskMeter; `worst` are examples of mistakes, the worst first."""
    matrix = Matrix("", tuple(classes), tuple(classes), results["confusion"].tolist())
    found: list[Section] = [per_class(results, classes), Group("Confusion", (Text("", _CONFUSED), matrix))]
    if worst:
        found.append(example_gallery("Worst images", _WORST, worst))
    return tuple(found)


def per_class(results: Mapping[str, Any], classes: Sequence[str]) -> Table:
    """IoU and recall of each class, the weakest first."""
    total = max(int(results["pixels_of"].sum()), 1)
    rows: list[dict[str, Value]] = []
    for label, name in enumerate(classes):
        scores = {title: float(results[key][label]) for title, key in (("IoU", "iou_of"), ("recall", "recall_of"))}
        row: dict[str, Value] = {"class": name, "pixels": int(results["pixels_of"][label]) / total}
        rows.append(row | {title: None if math.isnan(score) else score for title, score in scores.items()})
    rows.sort(key=lambda row: (row["IoU"] is None, row["IoU"] or 0.0))
    units: dict[str, Unit] = {"class": "", "pixels": "share", "IoU": "share", "recall": "share"}
    return Table("Per class", units, rows, bars=True, fold_after=20)
