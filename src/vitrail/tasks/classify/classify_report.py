"""The result of a classifier for reports: its metrics, tables by class, confusion matrix, calibration, mistakes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from vitrail.data.targets.class_balance import remedies, skew_of
from vitrail.report import Group, Matrix, Metric, Picture, Section, Table, Text, Unit, Value
from vitrail.report.charts import Bin, calibration, percent
from vitrail.report.intervals import bootstrap, wilson
from vitrail.report.metric import Interval
from vitrail.tasks.answer import Example
from vitrail.tasks.gallery import example_gallery

METRICS = {
    "accuracy": Metric("accuracy", "share", "share of images whose class is right"),
    "top5": Metric("top-5 accuracy", "share", "the true class is among the five likeliest"),
    "balanced_accuracy": Metric("balanced accuracy", "share", "mean of the recalls of the classes"),
    "macro_f1": Metric("macro F1", "share", "mean of the F1 of the classes"),
    "nll": Metric("NLL", "", "mean negative log likelihood of the true class", higher=False, is_loss=True),
    "ece": Metric("ECE", "share", "expected calibration error", higher=False),
    "ap": Metric("AP", "share", "average precision, mean over labels"),
    "auc": Metric("AUC", "share", "area under the ROC curve, mean over labels"),
    "f1": Metric("F1", "share", "at the chosen thresholds, mean over labels", curve="F1 at threshold 0.5"),
    "best_f1": Metric("best F1", "share", curve="F1 at the best thresholds", curve_only=True),  # fitted to these images
    "exact": Metric("exact match", "share", "all labels of an image right", curve="exact match at threshold 0.5"),
    "label_accuracy": Metric("label accuracy", "share", "of all labels", curve="label accuracy at threshold 0.5"),
    "bce": Metric("BCE", "", "mean binary cross-entropy", higher=False, is_loss=True),
}
BY_CLASS = {
    "recall": Metric("recall", "share", "share of the images of a class that are right"),
    "ap_of": Metric("AP", "share", "average precision of a label"),
}
_COUNTED = ("accuracy", "top5", "exact")  # metrics that are shares of the images
_LAG = 0.1  # of recall that a rare class may be behind before remedies are named
_MISTAKES = 12  # pairs of classes that a table lists
_ROWS = 20  # classes that a page shows before it folds the rest
_CLOSE = 0.02  # mean confidence and accuracy that differ by less are called equal
_WORST = "The most confident mistakes: what the model said, how sure it was, and the truth."


def lead(results: Mapping[str, Any]) -> str:
    """The result in a sentence, without a full stop."""
    images = int(results["images"])
    if "accuracy" in results:
        return f"Correct on {round(results['accuracy'] * images):,} of {images:,} images"
    return f"All labels correct on {round(results['exact'] * images):,} of {images:,} images"


def intervals(results: Mapping[str, Any]) -> dict[str, Interval]:
    """The 95 % intervals of the metrics that are shares of the images."""
    return {name: wilson(results[name], int(results["images"])) for name in _COUNTED if name in results}


def grouped_intervals(truth: Tensor, said: Tensor, groups: Sequence[str], num_classes: int) -> dict[str, Interval]:
    """Of accuracy and balanced accuracy of answers N, by resampling groups of images."""
    labels, hits = truth.numpy(), (said == truth).numpy()
    numbers = {name: number for number, name in enumerate(dict.fromkeys(groups))}
    rows = np.array([numbers[name] for name in groups])
    table = np.zeros((len(numbers), 2 * num_classes))  # G 2K: images of each class, and those that are right
    np.add.at(table, (rows, labels), 1)
    np.add.at(table, (rows[hits], num_classes + labels[hits]), 1)

    def accuracy(means: Any) -> Any:
        return means[num_classes:].sum(axis=0) / means[:num_classes].sum(axis=0)

    def balanced(means: Any) -> Any:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.nanmean(means[num_classes:] / means[:num_classes], axis=0)

    one_by_one = wilson(float(hits.mean()), len(table))  # groups count as one image each
    sure = len(table) == len(hits) or bool(hits.all())  # resampling what is all right says nothing
    found = {"accuracy": one_by_one if sure else bootstrap(table, accuracy)}
    return found if bool(hits.all()) else found | {"balanced_accuracy": bootstrap(table, balanced)}


def sections(
    results: Mapping[str, Any], classes: Sequence[str], *, worst: Sequence[Example] = ()
) -> tuple[Section, ...]:
    """All sections of the results of a ClassMeter or LabelMeter; `worst` are examples of mistakes, the worst first."""
    found: list[Section] = []
    if (counts := results.get("confusion")) is not None:
        found.append(confusion_matrix(counts, classes))
    found.append(per_class(results, classes))
    if "accuracy" in results:
        found += uneven_classes(results, classes)
    if undefined := [classes[label] for label in results.get("undefined", ())]:
        text = f"All images or none have: {', '.join(undefined)}. These labels have no AP, AUC or F1."
        found.append(Text("Not measured", text))
    found.append(calibration_diagram(results["bins"], multi_label="ap_of" in results))
    if worst:
        found.append(example_gallery("Worst mistakes", _WORST, worst))
    return tuple(found)


def per_class(results: Mapping[str, Any], classes: Sequence[str]) -> Table:
    """Recall, precision and F1 of each class, the weakest first; AP, AUC and threshold too with several labels."""
    multi_label = "ap_of" in results
    columns = {"images": "support"}
    columns |= {"AP": "ap_of", "AUC": "auc_of", "threshold": "used"} if multi_label else {}
    columns |= {"recall": "recall", "precision": "precision", "F1": "f1_of" if multi_label else "f1"}
    values = {column: results[name].tolist() for column, name in columns.items()}
    rows: list[dict[str, Value]] = [
        {"class": label, **{column: None if math.isnan(found[at]) else found[at] for column, found in values.items()}}
        for at, label in enumerate(classes)
    ]
    rows.sort(key=lambda row: (row["F1"] is None, row["F1"] or 0.0))
    units: dict[str, Unit] = {name: "" if name in ("class", "images", "threshold") else "share" for name in rows[0]}
    return Table("Per class", units, rows, bars=True, fold_after=_ROWS)


def uneven_classes(results: Mapping[str, Any], classes: Sequence[str]) -> list[Section]:
    """What uneven classes cost the rare one, and the remedies; nothing where they cost little."""
    skew = skew_of(classes, results["support"].tolist())
    if skew is None:
        return []
    rare, frequent = (float(results["recall"][list(classes).index(name)]) for name in (skew.rare, skew.frequent))
    if frequent - rare < _LAG:
        return []
    text = (
        f"{skew.rare!r} has {skew.least:,} of these images, {skew.frequent!r} {skew.most:,}; their recalls are "
        f"{percent(rare)} and {percent(frequent)}.\n{remedies()}."
    )
    return [Text("Uneven classes", text)]


def confusion_matrix(counts: Tensor, classes: Sequence[str]) -> Group:
    """The confusion matrix K K, rows the truth, beside the most frequent mistakes."""
    text = "Rows are the true class, columns the predicted class; blue is right, orange is wrong."
    matrix = Matrix("", tuple(classes), tuple(classes), counts.tolist())
    mistakes: Section = frequent_mistakes(counts, classes) or Text("", "No mistakes: every image is right.")
    return Group("Confusion matrix", (Text("", text), Group("", (matrix, mistakes), 2)))


def frequent_mistakes(counts: Tensor, classes: Sequence[str], most: int = _MISTAKES) -> Table | None:
    """The pairs of classes that are confused most, of a confusion matrix K K; None where there are no mistakes."""
    support = counts.sum(dim=1).tolist()
    wrong = counts.clone().fill_diagonal_(0).flatten()
    times, place = wrong.sort(descending=True, stable=True)
    rows: list[dict[str, Value]] = []
    for count, index in zip(times[:most].tolist(), place[:most].tolist(), strict=True):
        truth, predicted = divmod(index, len(classes))
        if count:
            share = count / support[truth]
            rows.append(
                {"truth": classes[truth], "predicted": classes[predicted], "images": count, "of the class": share}
            )
    columns: dict[str, Unit] = {"truth": "", "predicted": "", "images": "", "of the class": "share"}
    return Table("Most frequent mistakes", columns, rows) if rows else None


def calibration_diagram(bins: Tensor, *, multi_label: bool = False) -> Group:
    """The reliability diagram of bins 3 15 (count, mean confidence, share right), in words, and as a table."""
    found = [Bin(confidence, right, int(size)) for size, confidence, right in bins.T.tolist()]
    total = sum(one.size for one in found)
    sure = sum(one.size * one.confidence for one in found) / total
    right = sum(one.size * one.accuracy for one in found) / total
    verdict = "well calibrated" if abs(sure - right) < _CLOSE else "overconfident" if sure > right else "underconfident"
    if multi_label:
        means = f"The mean probability of a label is {percent(sure)}; {percent(right)} of the labels are present"
        bar = "A bar is how often labels of that probability are present"
    else:
        means = f"The mean confidence is {percent(sure)}; {percent(right)} of the images are right"
        bar = "A bar is the accuracy of predictions of that confidence"
    text = (
        f"{means}: the model is {verdict}.\n{bar}; the dashed line is perfect calibration. Orange: overconfident; "
        "faint blue: underconfident. The small bars below count predictions."
    )
    diagram = Group("", (Picture("", calibration(found), ""), Text("", text)), 2)
    return Group("Calibration", (diagram, _bin_table(found, "labels" if multi_label else "images")))


def _bin_table(bins: Sequence[Bin], counted: str) -> Table:
    rows: list[dict[str, Value]] = [
        {
            "confidence": f"{place / len(bins):.2f} to {(place + 1) / len(bins):.2f}",
            counted: one.size,
            "mean confidence": one.confidence,
            "right": one.accuracy,
        }
        for place, one in enumerate(bins)
        if one.size
    ]
    columns: dict[str, Unit] = {"confidence": "", counted: "", "mean confidence": "share", "right": "share"}
    return Table("Calibration bins", columns, rows, folded=True)
