"""The result of a segmenter for reports: IoU by class, confusion of pixels, worst images."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import torch
from torch import Tensor

from vitrail.data.targets.drawing import as_rgb, class_colour, draw_classes
from vitrail.data.targets.mask_target import IGNORE, MaskTarget
from vitrail.report import Group, Matrix, Metric, Picture, Section, Table, Text, Unit, Value
from vitrail.tasks.answer import Example
from vitrail.tasks.gallery import drawn_gallery
from vitrail.tasks.segment.mask_answer import MaskAnswer

METRICS = {
    "miou": Metric("mIoU", "share", "intersection over union, mean over classes, of all pixels together"),
    "pixel_accuracy": Metric("pixel accuracy", "share", "share of pixels whose class is right"),
    "class_accuracy": Metric("class accuracy", "share", "mean over classes of the share of their pixels that is found"),
    "cross_entropy": Metric("cross-entropy", "", higher=False, curve_only=True),
    "dice_loss": Metric("Dice loss", "", higher=False, curve_only=True),
    "lovasz_loss": Metric("Lovasz loss", "", higher=False, curve_only=True),
    "auxiliary_loss": Metric("auxiliary cross-entropy", "", higher=False, curve_only=True),
}
IOU = Metric("IoU", "share", "intersection over union of a class, of all pixels together")
_WORST = "The images with the most wrong pixels: the true classes, those that were found, and in red the wrong pixels."
_WRONG = (225, 40, 40)
_WIDE = 720  # pixels of a legend
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
        names = Picture("", legend(classes), "")
        found.append(Group("Worst images", (names, drawn_gallery("", _WORST, worst, drawn, _wrong_pixels))))
    return tuple(found)


def legend(classes: Sequence[str]) -> str:
    """The names of classes beside their colours, as SVG."""
    wide = 34 + 8 * max(map(len, classes))
    across = max(1, _WIDE // wide)
    items = []
    for number, name in enumerate(classes):
        left, top = number % across * wide, number // across * 24
        colour = "rgb({} {} {})".format(*class_colour(number))
        items.append(f'<rect x="{left}" y="{top + 4}" width="16" height="16" rx="3" fill="{colour}"/>')
        items.append(f'<text x="{left + 22}" y="{top + 17}" font-size="14" fill="currentColor">{escape(name)}</text>')
    size = f'viewBox="0 0 {min(len(classes), across) * wide} {-(-len(classes) // across) * 24}"'
    return f'<svg {size} width="{min(len(classes), across) * wide}" role="img">{"".join(items)}</svg>'


def drawn(example: Example) -> tuple[Tensor, Tensor, Tensor] | None:
    """The true classes, those that were found, and the wrong pixels."""
    true, answer, image = example.targets.get(MaskTarget.field), example.answer, as_rgb(example.image)
    if true is None or not isinstance(answer, MaskAnswer) or not true.shape == answer.size == image.shape[1:]:
        return None
    wrong = (true != answer.classes) & (true != IGNORE)
    grey = image.float().mean(dim=0).to(torch.uint8).expand(3, -1, -1)
    red = torch.tensor(_WRONG, dtype=torch.uint8)[:, None, None]
    return draw_classes(image, true, IGNORE), draw_classes(image, answer.classes, IGNORE), torch.where(wrong, red, grey)


def _wrong_pixels(example: Example) -> str:
    return f"{100 * example.error:.0f} % of the pixels wrong"


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
