"""Meters by image: merged they give the metrics of the whole, and many images share meters at random."""

import pytest
from support.compared_runs import seen_of

from vitrail.comparison.by_image import UNITS, Units, metric_of


def test_merged_meters_are_the_whole() -> None:
    seen = seen_of([True, False, True, True])
    assert seen.not_by_image() == []
    assert seen.of_units([0, 0, 1])[("accuracy", "")] == pytest.approx(2 / 3)
    assert seen.found[("recall", "cat")] == 1


def test_a_metric_that_is_not_that_of_its_images_is_named() -> None:
    seen = seen_of([True, False, True, True])
    seen.found[("accuracy", "")] = 0.5  # as of a meter that cannot be merged
    assert seen.not_by_image() == [("accuracy", "")]


def test_many_images_share_meters_evenly_and_not_in_order() -> None:
    units = Units(3 * UNITS)
    units.fit(100)
    assert units.count == UNITS
    assert units.of.bincount().tolist() == [3] * UNITS
    assert units.of[:UNITS].unique().numel() < UNITS


def test_large_meters_are_fewer() -> None:
    units = Units(UNITS)
    units.fit(16 << 20)
    assert units.count == 16
    few = Units(3)
    few.fit(100)
    assert few.of.tolist() == [0, 1, 2]


def test_metrics_of_classes_have_names() -> None:
    seen = seen_of([True, False])
    results = seen.evaluation.results
    assert metric_of(seen.task, results, "accuracy").unit == "share"
    assert metric_of(seen.task, results, "recall").title == "recall"
