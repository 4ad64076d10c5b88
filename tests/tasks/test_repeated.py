"""Meters that are merged several times: by merging, by the meter itself, and in a meter of several tasks."""

import pytest
import torch
from support.compared_runs import seen_of

from vitrail.tasks.repeated import Repeating, repeated


class Mean:
    """The mean of numbers."""

    def __init__(self, *numbers):
        self.numbers = [*numbers]

    def update(self, outputs, targets):
        self.numbers += outputs["number"].tolist()

    def merge(self, other):
        self.numbers += other.numbers

    def compute(self):
        return {"mean": sum(self.numbers) / len(self.numbers)}


class Sums(Mean):
    """The same, with the sums of parts taken once."""

    def repeated(self, parts):
        sums, counts = ([fold(part.numbers) for part in parts] for fold in (sum, len))
        return lambda times: {"mean": sum(map(int.__mul__, sums, times)) / sum(map(int.__mul__, counts, times))}


@pytest.mark.parametrize("kind", [Mean, Sums])
def test_parts_count_as_often_as_they_are_merged(kind):
    results = repeated(kind(), [kind(1), kind(2, 3), kind(100)])
    assert isinstance(kind(), Repeating) == (kind is Sums)
    assert results([2, 1, 0]) == {"mean": 7 / 4}
    assert results([0, 0, 1]) == {"mean": 100}, "what was merged before is forgotten"


def test_a_classifier_is_merged():
    seen = seen_of([True, False])
    results = repeated(seen.task.metrics(), list(seen.meters.values()))
    assert results([3, 1])["accuracy"] == pytest.approx(3 / 4)
    assert torch.equal(results([1, 1])["confusion"], seen.evaluation.results["confusion"])
