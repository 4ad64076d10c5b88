"""Goals of decisions: against all thresholds tried one by one, in state, answers and graphs, and what is refused."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small_tasks import CLASSES, classifier
from torch import Tensor

from vitrail.config import from_dict
from vitrail.errors import ConfigError
from vitrail.tasks.classify import ClassifyConfig
from vitrail.tasks.classify.goal import (
    BalancedGoal,
    CostGoal,
    Decision,
    F1Goal,
    GoalConfig,
    RecallGoal,
    choose_offsets,
    decide,
    label_thresholds,
)


def scattered(count: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits that say something of classes of which the first is the most frequent."""
    draw = torch.Generator().manual_seed(seed)
    labels = (torch.rand(count, generator=draw) ** 3 * classes).long()
    labels[:classes] = torch.arange(classes)
    return torch.randn(count, classes, generator=draw) + 1.5 * torch.eye(classes)[labels], labels


def recalls(said: Tensor, labels: Tensor, count: int) -> Tensor:
    return torch.stack([(said[labels == label] == label).double().mean() for label in range(count)])


def every_threshold(logits: Tensor) -> list[float]:
    margins = (logits[:, 0] - logits[:, 1]).double().sort().values
    return [float(margins[0]) - 1, *((margins[1:] + margins[:-1]) / 2).tolist(), float(margins[-1]) + 1]


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10_000))
def test_of_two_classes_no_threshold_is_better(seed: int) -> None:
    logits, labels = scattered(60, 2, seed)

    def said(offset: float) -> Tensor:
        return (logits.double() + torch.tensor([0.0, offset])).argmax(dim=1)

    found = float(choose_offsets(BalancedGoal(), logits, labels, None)[1])
    best = max(recalls(said(one), labels, 2).mean() for one in every_threshold(logits))
    assert recalls(said(found), labels, 2).mean() == pytest.approx(float(best))

    cost = torch.tensor([[0.0, 1.0], [7.0, 0.0]])
    found = float(choose_offsets(CostGoal(of="b", miss=7.0), logits, labels, 1)[1])
    least = min(cost[labels, said(one)].sum() for one in every_threshold(logits))
    assert cost[labels, said(found)].sum() == least

    found = float(choose_offsets(RecallGoal(at_least=0.9), logits, labels, 1)[1])
    enough = [one for one in every_threshold(logits) if recalls(said(one), labels, 2)[1] >= 0.9]
    assert recalls(said(found), labels, 2)[1] >= 0.9
    assert (said(found) == 1).sum() == min((said(one) == 1).sum() for one in enough)


@pytest.mark.parametrize("goal", [F1Goal(), BalancedGoal(), CostGoal(matrix=((0, 1, 1), (5, 0, 5), (2, 2, 0)))])
def test_of_more_classes_it_is_at_least_as_good_as_the_largest_logit(goal: GoalConfig) -> None:
    logits, labels = scattered(300, 3)
    offsets = choose_offsets(goal, logits, labels, None)

    def value(said: Tensor) -> float:
        if isinstance(goal, CostGoal):
            return -float(goal.costs(3, None)[labels, said].sum())
        if isinstance(goal, BalancedGoal):
            return float(recalls(said, labels, 3).mean())
        pairs = [((said == label), (labels == label)) for label in range(3)]
        return sum(float(2 * (one & two).sum() / (one.sum() + two.sum())) for one, two in pairs) / 3

    usual, chosen = value(logits.argmax(dim=1)), value((logits + offsets).argmax(dim=1))
    assert chosen > usual
    nearby = [offsets + torch.tensor(step) for step in itertools.product((-0.02, 0.0, 0.02), repeat=3)]
    assert chosen >= max(value((logits + one).argmax(dim=1)) for one in nearby) - 0.01 * abs(chosen)


def test_what_nothing_improves_stays_as_it_is() -> None:
    logits = torch.tensor([[2.0, 0.0], [3.0, 0.0], [0.0, 1.0]])
    assert choose_offsets(BalancedGoal(), logits, torch.tensor([0, 0, 1]), None).tolist() == [0, 0]


def test_thresholds_of_labels() -> None:
    logits, marks = torch.tensor([[3.0, 1], [1, -1], [0, 1], [-2, -1]]), torch.tensor([[1, 1], [0, 1], [1, 1], [0, 1]])
    usual = torch.tensor([0.5, 0.4])
    found = label_thresholds(RecallGoal(at_least=1.0), logits, marks > 0, ("a", "b"), usual)
    assert found[0] == pytest.approx(float(torch.sigmoid(torch.tensor(-1.0))))  # halfway between logits 0 and -2
    assert found[1] == pytest.approx(0.4)  # all images have it
    assert torch.equal(label_thresholds(RecallGoal(of="b"), logits, marks > 0, ("a", "b"), usual), usual)


def test_it_is_said_what_changed() -> None:
    logits, labels = scattered(200, 2)
    about = decide(RecallGoal(at_least=0.9), logits, labels, ("usual", "rare")).about
    assert "recall >= 0.9" in about
    assert "'rare'" in about


def test_a_classifier_adopts_stores_and_uses_it() -> None:
    task = classifier(goal=RecallGoal(at_least=1.0, of="bee"))
    logits, labels = scattered(80, 5)
    meter = task.metrics()
    meter.update({"logits": logits}, {"label": labels})
    task.adopt(meter.compute())
    other = classifier(goal=RecallGoal(at_least=1.0, of="bee"))
    other.load_state(task.state())
    assert other.decision == task.decision
    meter = other.metrics()
    meter.update({"logits": logits}, {"label": labels})
    assert meter.compute()["recall"][1] == 1
    chosen = other.graph({"logits": logits})["chosen"]
    assert torch.equal(chosen.argmax(dim=1), other.choose(logits))
    moved = (other.choose(logits) != logits.argmax(dim=1)).nonzero()[0]
    (answer,) = other.decode({"logits": logits[moved]})
    assert answer.candidates[0].label == "bee"
    assert answer.candidates[0].chosen
    assert answer.row()["label"] == "bee"
    assert "bee" in other.calibration()
    arrays = {"logits": logits.numpy()}
    assert other.same(arrays, arrays).all()


def test_labels_take_thresholds_of_a_goal() -> None:
    task = classifier(multi_label=True, goal=CostGoal(miss=20.0))
    marks = (torch.rand(60, 5, generator=torch.Generator().manual_seed(0)) < 0.3).float()
    logits = marks + torch.randn(60, 5, generator=torch.Generator().manual_seed(1))
    meter = task.metrics()
    meter.update({"logits": logits}, {"labels": marks})
    task.adopt(meter.compute())
    again = task.metrics()
    again.update({"logits": logits}, {"labels": marks})
    assert again.compute()["recall"].min() > 0.9
    assert torch.equal(task.graph({"logits": logits})["chosen"] > 0, logits.sigmoid() >= task.thresholds)


@pytest.mark.parametrize(
    ("goal", "word"),
    [
        (F1Goal(of="bird"), "bird"), (CostGoal(), "matrix"), (CostGoal(matrix=((0, 1), (1, 0))), "rows"),
    ],
)  # fmt: skip
def test_goals_that_do_not_fit_the_classes_are_refused(goal: GoalConfig, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        classifier(goal=goal)


def test_wrong_options_are_refused() -> None:
    for goal in ("speed", {"kind": "recall", "at_least": 1.5}, {"kind": "cost", "miss": 0}):
        with pytest.raises(ConfigError, match=r"goal|at_least|miss"):
            from_dict(ClassifyConfig, {"goal": goal})
    with pytest.raises(ConfigError, match="one class"):
        classifier(multi_label=True, goal=CostGoal(matrix=((0, 1), (1, 0))))
    with pytest.raises(ConfigError, match="classes"):
        F1Goal().check([str(number) for number in range(200)], multi_label=False)
    with pytest.raises(ValueError, match="offsets"):
        Decision.from_dict({"offsets": [1.0]}, len(CLASSES))
