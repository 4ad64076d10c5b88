"""Metrics: their values with intervals, in their order and unit."""

import torch

from vitrail.report.metric import Figure, Metric, figures, show_interval

METRICS = {
    "error": Metric("error", "", "mean error", higher=False),
    "accuracy": Metric("accuracy", "share", "right"),
    "best": Metric("best", curve_only=True),
}


def test_figures_are_the_plain_numbers_in_the_order_of_the_metrics():
    results = {"accuracy": 0.75, "error": 2, "best": 1.0, "unknown": 3.0, "confusion": torch.eye(2)}
    found = figures(results, METRICS, {"accuracy": (0.5, 0.9)})
    assert list(found) == ["error", "accuracy"]
    assert found["accuracy"] == Figure(0.75, "accuracy", "share", "right", (0.5, 0.9))
    assert (found["accuracy"].text, found["accuracy"].note) == ("75.0 %", "95 % interval: 50.0 to 90.0 %")
    assert (found["error"].text, found["error"].note) == ("2", "mean error")


def test_an_interval_has_its_unit_once():
    assert show_interval((0.873, 0.901), "share") == "87.3 to 90.1 %"
    assert show_interval((-1.5, 2.0)) == "-1.5 to 2"
