"""Sections of a classifier's result: the numbers of its meter, the weakest first, in one place for all reports."""

import pytest
import torch

from vitrail.report import Report
from vitrail.report.intervals import wilson
from vitrail.tasks.classify import classify_report
from vitrail.tasks.classify.class_metrics import ClassMeter, LabelMeter
from vitrail.tasks.classify.classify_report import (
    calibration_diagram,
    confusion_matrix,
    frequent_mistakes,
    uneven_classes,
)

CLASSES = ("ant", "bee", "cat", "dog", "elk")


def one_label(count: int = 60, strength: float = 2.0):
    meter = ClassMeter(5, field="label")
    labels = torch.arange(count) % 5
    logits = torch.randn(count, 5) + strength * torch.eye(5)[labels]
    meter.update({"logits": logits}, {"label": labels})
    return meter.compute()


def several_labels():
    meter = LabelMeter([0.5] * 5, field="labels")
    labels = (torch.rand(40, 5) < 0.5).float()
    labels[:, 2] = 1
    meter.update({"logits": torch.randn(40, 5)}, {"labels": labels})
    return meter.compute()


def test_one_label_an_image():
    results = one_label()
    report = Report("zoo", classify_report.sections(results, CLASSES))
    assert [section.title for section in report.sections] == ["Confusion matrix", "Per class", "Calibration"]
    rows = report["Per class"].rows
    assert [row["F1"] for row in rows] == sorted(row["F1"] for row in rows)
    for row in rows:
        at = CLASSES.index(row["class"])
        assert (row["images"], row["recall"]) == (12, results["recall"][at])
    mistakes = report["Most frequent mistakes"].rows
    for row in mistakes:
        assert row["images"] == results["confusion"][CLASSES.index(row["truth"]), CLASSES.index(row["predicted"])]
    assert sum(row["images"] for row in report["Calibration bins"].rows) == 60
    assert Report.from_json(report.to_json()).to_json() == report.to_json()
    assert "<svg" in report.to_html()


def test_several_labels_an_image():
    results = several_labels()
    report = Report("zoo", classify_report.sections(results, CLASSES))
    assert [section.title for section in report.sections] == ["Per class", "Not measured", "Calibration"]
    assert "cat" in report["Not measured"].text
    row = report["Per class"].rows[-1]
    assert (row["class"], row["AP"], row["images"], row["threshold"]) == ("cat", None, 40, 0.5)
    assert sum(row["labels"] for row in report["Calibration bins"].rows) == 200
    assert "NaN" not in report.to_json()


def test_the_lead_and_the_intervals():
    results = {"accuracy": 0.75, "images": 60, "top5": 1.0, "nll": 0.5}
    assert classify_report.lead(results) == "Correct on 45 of 60 images"
    assert classify_report.intervals(results) == {"accuracy": wilson(0.75, 60), "top5": wilson(1.0, 60)}
    assert "30 of 60" in classify_report.lead({"exact": 0.5, "images": 60})


@pytest.mark.parametrize("make", [one_label, several_labels])
def test_every_number_is_described(make):
    numbers = {name for name, value in make().items() if isinstance(value, float)}
    assert numbers <= set(classify_report.METRICS)


def test_the_most_frequent_mistakes():
    table = frequent_mistakes(torch.tensor([[5, 3, 0], [0, 9, 1], [2, 3, 5]]), CLASSES[:3], most=3)
    assert [(row["truth"], row["predicted"], row["images"]) for row in table.rows] == [
        ("ant", "bee", 3),
        ("cat", "bee", 3),
        ("cat", "ant", 2),
    ]
    assert table.rows[0]["of the class"] == 3 / 8


def test_no_mistakes_have_no_table():
    counts = torch.eye(3, dtype=torch.long)
    assert frequent_mistakes(counts, CLASSES[:3]) is None
    assert "No mistakes" in str(Report("zoo", (confusion_matrix(counts, CLASSES[:3]),)))


@pytest.mark.parametrize(
    ("sure", "right", "verdict"),
    [(0.9, 0.5, "overconfident"), (0.5, 0.9, "underconfident"), (0.8, 0.81, "well calibrated")],
)
def test_calibration_has_a_verdict(sure, right, verdict):
    bins = torch.tensor([[0.0, 10.0], [0.0, sure], [0.0, right]])
    assert verdict in str(Report("zoo", (calibration_diagram(bins),)))


def test_a_rare_class_that_lags_behind_is_named_with_remedies():
    meter = ClassMeter(2)
    truth = torch.tensor([0] * 90 + [1] * 10)
    meter.add(torch.eye(2)[torch.tensor([0] * 94 + [1] * 6)], truth)
    (section,) = uneven_classes(meter.compute(), ("usual", "rare"))
    assert "'rare'" in section.text
    assert "--sampling balanced" in section.text
    meter = ClassMeter(2)
    meter.add(torch.eye(2)[truth], truth)
    assert uneven_classes(meter.compute(), ("usual", "rare")) == []
