"""Training curves: what stands in which chart, and which epoch is marked."""

import re

from vitrail.report import Group, Metric, Picture
from vitrail.report.sections import walk
from vitrail.training.report.curves import training_curves, values_of

METRICS = {
    "accuracy": Metric("accuracy", "share"),
    "nll": Metric("NLL", higher=False, is_loss=True),
    "ece": Metric("ECE", "share", higher=False),
    "f1": Metric("F1", "share", curve="F1 at threshold 0.5"),
    "mae": Metric("MAE", higher=False),
}


def charts(history, best_metric="accuracy", best_epoch=None) -> dict[str, Picture]:
    group = training_curves(history, METRICS, best_metric, best_epoch)
    return {section.title: section for section in walk([group]) if isinstance(section, Picture)}


def rows(**columns):
    count = len(next(iter(columns.values())))
    return [
        {"epoch": at + 1, **{name.replace("__", "/"): values[at] for name, values in columns.items()}}
        for at in range(count)
    ]


def test_no_epochs_have_no_curves():
    assert training_curves((), METRICS, "accuracy", None) is None
    assert training_curves(({"epoch": 1, "train/loss": None},), METRICS, "accuracy", None) is None


def test_loss_and_best_metric_are_large_and_all_else_small():
    history = rows(train__loss=[2.0, 1.0], val__loss=[2, 1.5], val__accuracy=[0.5, 0.6], lr=[1e-3, 0], waiting=[0, 0.1])
    group = training_curves(history, METRICS, "accuracy", None)
    large, small = group.sections
    assert isinstance(large, Group)
    assert (large.columns, [chart.title for chart in large.sections]) == (2, ["Loss", "Accuracy"])
    assert (small.columns, [chart.title for chart in small.sections]) == (3, ["Learning rate", "Waiting for data"])
    assert large.sections[0].legend == ("training", "validation")
    assert large.sections[1].text == "validation, best 60 % at epoch 2"
    assert small.sections[1].text == "share of the time"


def test_training_comes_before_validation():
    history = rows(val__accuracy=[0.5, 0.6], train__accuracy=[0.4, 0.5])
    assert charts(history)["Accuracy"].legend == ("training", "validation")


def test_training_loss_stands_beside_what_validation_has():
    found = charts(rows(train__loss=[2, 2], val__nll=[1.9, 1.9], val__ece=[0.1, 0.1], val__images=[9, 9]))
    assert list(found) == ["Loss", "ECE"]
    assert "training from 2 to 2, validation NLL from 1.9 to 1.9" in found["Loss"].source


def test_the_epoch_that_the_run_chose_is_ringed():
    history = rows(val__accuracy=[0.9, 0.5, 0.5])
    group = training_curves(history, METRICS, "accuracy", 3)
    chart, note = walk([group.sections[0]]), group.sections[1]
    assert next(one for one in chart if isinstance(one, Picture)).text == "validation, best 50 % at epoch 3"
    assert "Epoch 1 was better, 90 %" in note.text
    assert "warm-up" in note.text
    svg = charts(history, best_epoch=3)["Accuracy"].source
    ring, first = (re.search(rf'class="{cls}" cx="([\d.]+)"', svg) for cls in ("mark a", "dot a"))
    assert float(ring[1]) > float(first[1])
    assert len(training_curves(history[1:], METRICS, "accuracy", 3).sections) == 1


def test_lower_is_better_where_the_metric_says_so():
    assert "best 2 at epoch 2" in charts(rows(val__mae=[5.0, 2.0, 3.0]), "mae")["MAE"].text


def test_curves_have_their_own_title_and_shares_stay_below_one():
    found = charts(rows(val__f1=[0.75, 0.75], val__accuracy=[1.0, 1.0]))
    assert "F1 at threshold 0.5" in found
    assert not any(re.search(r">1[1-9]\d %<", chart.source) for chart in found.values())


def test_a_metric_without_a_description_has_its_name():
    assert "Novel" in charts(rows(val__novel=[1.0, 2.0]))


def test_values_without_gaps():
    assert values_of([{"a": 1.0}, {"a": None}, {"a": float("nan")}, {}], "a") == [1.0]
