"""The result of a detector for reports: average precision by class and size, curves, confusion, worst images."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.targets.boxes_target import BOX, CLASS, IGNORE, BoxesTarget
from vitrail.data.targets.drawing import as_rgb, draw_boxes
from vitrail.report import Group, Matrix, Metric, Picture, Section, Table, Text, Unit, Value
from vitrail.report.charts import Curve, curves
from vitrail.report.charts_axes import percent
from vitrail.tasks.answer import Example
from vitrail.tasks.detect.counting import matches
from vitrail.tasks.detect.detect_answer import BoxesAnswer
from vitrail.tasks.gallery import drawn_gallery

METRICS = {
    "ap": Metric("AP", "share", "average precision, mean over IoU 0.5 to 0.95 and classes"),
    "ap50": Metric("AP50", "share", "average precision at IoU 0.5"),
    "ap75": Metric("AP75", "share", "average precision at IoU 0.75"),
    "ap_small": Metric("AP small", "share", "of objects below 32 x 32 pixels"),
    "ap_medium": Metric("AP medium", "share", "of objects from 32 x 32 to 96 x 96 pixels"),
    "ap_large": Metric("AP large", "share", "of larger objects"),
    "recall": Metric("AR", "share", "mean recall of the 100 best boxes"),
    "f1": Metric("F1", "share", "at IoU 0.5 and the chosen threshold", curve="F1 at the threshold so far"),
    "precision_at": Metric("precision", "share", "at IoU 0.5 and the chosen threshold"),
    "recall_at": Metric("recall", "share", "at IoU 0.5 and the chosen threshold"),
    "threshold": Metric("threshold", "", "of the best F1", curve_only=True),
    "best_f1": Metric("best F1", "share", curve="F1 at the best threshold", curve_only=True),
    "class_loss": Metric("class loss", "", higher=False, curve_only=True),
    "box_loss": Metric("box distance", "", higher=False, curve_only=True),
    "giou_loss": Metric("GIoU loss", "", higher=False, curve_only=True),
}
_CURVES = 12  # classes that have a chart
_WORST = (
    "The images with the largest share of superfluous and missed boxes. On the left the true boxes: green ones were "
    "found, red ones were missed. On the right the boxes that were found: green ones are right, red ones superfluous "
    "or of another class."
)
_RIGHT, _WRONG, _IGNORED = (30, 160, 70), (225, 40, 40), (150, 150, 150)
_CONFUSED = (
    "Boxes at IoU 0.5 and the chosen threshold. Rows are the true class, columns the class that was found; the last "
    "row counts superfluous boxes, the last column missed ones."
)


def lead(results: Mapping[str, Any]) -> str:
    """The result in a sentence, without a full stop."""
    return (
        f"AP {results['ap']:.3f}, AP50 {results['ap50']:.3f}, on {int(results['boxes']):,} boxes in "
        f"{int(results['images']):,} images"
    )


def sections(
    results: Mapping[str, Any], classes: Sequence[str], *, worst: Sequence[Example] = ()
) -> tuple[Section, ...]:
    """All sections of the results of a BoxMeter; `worst` are examples of mistakes, the worst first."""
    found: list[Section] = [per_class(results, classes)]
    if (charts := precision_curves(results, classes)) is not None:
        found.append(charts)
    found.append(confusion_matrix(results["confusion"], classes))
    if worst:
        found.append(drawn_gallery("Worst images", _WORST, worst, lambda one: drawn(one, classes), _mistakes))
    return tuple(found)


def drawn(example: Example, classes: Sequence[str]) -> tuple[Tensor, Tensor] | None:
    """The true boxes, and those that were found."""
    value, answer, image = example.targets.get(BoxesTarget.field), example.answer, as_rgb(example.image)
    if value is None or not isinstance(answer, BoxesAnswer):
        return None
    true = value[value[:, CLASS] >= 0]
    boxes = torch.tensor([box.corners for box in answer.boxes]).view(-1, 4)
    partners = matches(
        boxes.numpy(), np.array([box.number for box in answer.boxes]), true[:, BOX].numpy(), true[:, CLASS].numpy()
    )
    met, ignored = set(partners.tolist()), (true[:, IGNORE] > 0).tolist()
    colours = [_IGNORED if skip else _RIGHT if at in met else _WRONG for at, skip in enumerate(ignored)]
    names = [classes[int(number)] for number in true[:, CLASS]]
    said = [_WRONG if at < 0 else _IGNORED if ignored[at] else _RIGHT for at in partners.tolist()]
    labels = [f"{box.label} {100 * box.score:.0f} %" for box in answer.boxes]
    return draw_boxes(image, true[:, BOX], names, colours), draw_boxes(image, boxes, labels, said)


def _mistakes(example: Example) -> str:
    return f"{100 * example.error:.0f} % superfluous or missed"


def per_class(results: Mapping[str, Any], classes: Sequence[str]) -> Table:
    """AP and AP50 of each class, the weakest first."""
    rows: list[dict[str, Value]] = []
    for label, name in enumerate(classes):
        scores = {title: float(results[key][label]) for title, key in (("AP", "ap_of"), ("AP50", "ap50_of"))}
        row: dict[str, Value] = {"class": name, "boxes": int(results["boxes_of"][label])}
        rows.append(row | {title: None if math.isnan(score) else score for title, score in scores.items()})
    rows.sort(key=lambda row: (row["AP"] is None, row["AP"] or 0.0))
    units: dict[str, Unit] = {"class": "", "boxes": "", "AP": "share", "AP50": "share"}
    return Table("Per class", units, rows, bars=True, fold_after=20)


def precision_curves(results: Mapping[str, Any], classes: Sequence[str]) -> Group | None:
    """Precision by recall at IoU 0.5, of the classes with the lowest AP50; None where no class has a box."""
    score = results["ap50_of"]
    measured = [label for label in range(len(classes)) if not math.isnan(float(score[label]))]
    weakest = sorted(sorted(measured, key=lambda label: float(score[label]))[:_CURVES])
    if not weakest:
        return None
    charts = []
    for label in weakest:
        line = [(float(at), float(value)) for at, value in enumerate(results["precision"][label])]
        svg = curves(
            f"Precision of {classes[label]}", [Curve(classes[label], line)], x="recall, %", show=percent, floor=0.0,
            ceiling=1.0, within=(0.0, 1.0), small=len(weakest) > 2,
        )  # fmt: skip
        charts.append(Picture(classes[label], svg, ""))
    few = [] if len(weakest) == len(measured) else [Text("", f"The {_CURVES} classes with the lowest AP50.")]
    return Group("Precision by recall at IoU 0.5", (*few, Group("", tuple(charts), 3 if len(weakest) > 2 else 2)))


def confusion_matrix(counts: Tensor, classes: Sequence[str]) -> Group:
    """The confusion matrix K+1 K+1, rows the truth."""
    names = (*classes, "no box")
    return Group("Confusion", (Text("", _CONFUSED), Matrix("", names, names, counts.tolist())))
