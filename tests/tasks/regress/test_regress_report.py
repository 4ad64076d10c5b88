"""Sections of a regression's result: errors by hand, intervals, charts for each number."""

import math

import pytest
import torch

from vitrail.report import Picture, Report
from vitrail.report.sections import walk
from vitrail.tasks.regress import regress_report
from vitrail.tasks.regress.regress_report import scores, sections


def numbers(count: int, width: int):
    truth = 50 + 10 * torch.randn(count, width)
    return truth, truth + torch.randn(count, width)


def test_scores_by_hand():
    found = scores(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 2.0, 3.0, 6.0]))
    assert found["mae"].value == pytest.approx(0.5)
    assert found["rmse"].value == pytest.approx(1.0)
    assert found["r2"].value == pytest.approx(1 - 4 / 5)
    for score in found.values():
        assert score.interval[0] <= score.value <= score.interval[1]


def test_equal_truths_have_no_r2():
    found = scores(torch.full((5,), 3.0), torch.rand(5))
    assert math.isnan(found["r2"].value)
    report = Report("x", sections(torch.full((5, 1), 3.0), torch.rand(5, 1), ["age"]))
    assert report["Per number"].rows[0]["R2"] is None


def test_one_number_has_both_charts_side_by_side():
    truth, predicted = numbers(80, 1)
    report = Report("ages", sections(truth, predicted, ["age"], half_widths=[100.0]))
    assert [section.title for section in report.sections] == ["Per number", "Predictions"]
    row = report["Per number"].rows[0]
    assert row["MAE"] == pytest.approx((truth - predicted).abs().mean().item())
    assert row["coverage"] == 1.0
    low, high = map(float, row["MAE 95 %"].split(" to "))
    assert low < row["MAE"] < high
    assert "band" in report["Truth and prediction"].source
    assert "<svg" in report["Residuals"].source
    assert Report.from_json(report.to_json()).to_json() == report.to_json()


@pytest.mark.parametrize(("width", "shown"), [(2, 2), (5, 5), (14, 12)])
def test_several_numbers_have_a_chart_each_up_to_a_dozen(width, shown):
    names = [f"number {index}" for index in range(width)]
    report = Report("x", sections(*numbers(30, width), names))
    assert len(report["Per number"].rows) == width
    charts = [section for section in walk([report["Predictions"]]) if isinstance(section, Picture)]
    assert len(charts) == shown
    assert "coverage" not in report["Per number"].columns
    assert ("lowest R2" in str(report)) == (width > 12)


def test_the_lead():
    assert regress_report.lead({"mae": 3.0552, "r2": 0.9616, "images": 800}) == (
        "Mean absolute error 3.055, R2 0.962, on 800 images"
    )
