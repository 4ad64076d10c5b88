"""What a probe predicts, and its score."""

import pytest
import torch

from vitrail.data.targets import ClassTarget, LabelsTarget, NumbersTarget
from vitrail.errors import DataError, Unsupported
from vitrail.explain.probes.outcome import outcome_of

CLASSES, NUMBERS = ClassTarget(classes=("cat", "dog", "owl")), NumbersTarget(names=("age", "height"))


def test_classes_have_accuracy() -> None:
    outcome = outcome_of("made", {"label": CLASSES})
    values = torch.tensor([0, 1, 1, 2])
    assert outcome.encode(values).tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1]]
    predicted = torch.eye(3)[[0, 1, 2, 2]]
    assert outcome.score(outcome.error(predicted, values), values) == 0.75
    assert outcome.facts(values)["the most common class alone"] == 0.5


def test_numbers_have_r2() -> None:
    outcome = outcome_of("made", {"numbers": NUMBERS})
    values = torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    exact, mean = outcome.error(values, values), outcome.error(values.mean(dim=0).expand(3, 2), values)
    assert outcome.score(exact, values) == 1
    assert outcome.score(mean, values) == pytest.approx(0)
    halves = outcome.error(values[:1], values[:1]) + outcome.error(values[1:] + 1, values[1:])
    assert outcome.score(halves, values) == pytest.approx(1 - 2 / 8)
    assert outcome.facts(values)["numbers"] == "age, height"


def test_data_that_cannot_be_probed() -> None:
    with pytest.raises(Unsupported, match="no labels"):
        outcome_of("made", {})
    with pytest.raises(Unsupported, match="labels"):
        outcome_of("made", {"labels": LabelsTarget(classes=("a", "b"))})
    with pytest.raises(DataError, match="one class"):
        outcome_of("made", {"label": ClassTarget(classes=("a",))})
