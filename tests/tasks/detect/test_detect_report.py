"""Report sections of a detector."""

import pytest
import torch

from vitrail.report import Report
from vitrail.tasks.detect.detect_report import lead, per_class, precision_curves, sections

CLASSES = ("cat", "dog")
RESULTS = {
    "ap": 0.5, "ap50": 0.75, "boxes": 1200, "images": 30, "ap_of": torch.tensor([0.6, torch.nan]),
    "ap50_of": torch.tensor([0.8, torch.nan]), "boxes_of": torch.tensor([1200, 0]), "precision": torch.rand(2, 101),
    "confusion": torch.tensor([[900, 0, 300], [0, 0, 0], [40, 2, 0]]),
}  # fmt: skip


def test_the_result_in_a_sentence():
    assert lead(RESULTS) == "AP 0.500, AP50 0.750, on 1,200 boxes in 30 images"


def test_a_class_without_boxes_has_no_ap():
    rows = {row["class"]: row for row in per_class(RESULTS, CLASSES).rows}
    assert rows["cat"]["AP"] == pytest.approx(0.6)
    assert rows["dog"]["AP"] is None


def test_a_page_of_all_sections():
    found = sections(RESULTS, CLASSES)
    page = Report("detection", found).to_html()
    assert "Precision by recall" in page
    assert "no box" in page
    assert Report.from_json(Report("detection", found).to_json())


def test_no_curve_without_boxes():
    empty = RESULTS | {"ap50_of": torch.full((2,), torch.nan)}
    assert precision_curves(empty, CLASSES) is None


def test_many_classes_have_few_charts():
    many = {"ap50_of": torch.rand(20), "precision": torch.rand(20, 101)}
    charts = precision_curves(many, [f"class {index}" for index in range(20)])
    assert "12" in Report("x", (charts,)).to_html()
