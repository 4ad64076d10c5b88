"""--sampling and --goal: what they mean in a recipe, and what is refused."""

from argparse import Namespace

import pytest

from vitrail.cli.uneven import read_goal, read_sampling, with_uneven
from vitrail.errors import ConfigError


def test_goals() -> None:
    assert read_goal("f1") == {"kind": "f1"}
    assert read_goal("recall=0.95") == {"kind": "recall", "at_least": 0.95}
    assert read_goal("recall:defect>=0.9") == {"kind": "recall", "of": "defect", "at_least": 0.9}
    assert read_goal("recall: ankle boot >= 0.9") == {"kind": "recall", "of": "ankle boot", "at_least": 0.9}
    assert read_goal("cost:defect=10") == {"kind": "cost", "of": "defect", "miss": 10.0}
    assert read_goal("f1:T-shirt/top") == {"kind": "f1", "of": "T-shirt/top"}


@pytest.mark.parametrize(
    "text",
    [
        "speed",
        "f1=0.9",
        "recall:a=",
        "recall=high",
        "recall:a=1.5",
        "recall=-1",
        "cost",
        "cost=3",
        "cost:a=0",
        "cost:a=nan",
        "",
    ],
)
def test_what_is_not_a_goal(text: str) -> None:
    with pytest.raises(ConfigError, match="--goal"):
        read_goal(text)


def test_sampling() -> None:
    assert read_sampling("balanced") == {"sampling": "balanced"}
    assert read_sampling("balanced:0.5") == {"sampling": "balanced", "sampling_power": 0.5}


@pytest.mark.parametrize("text", ["balanced:half", "balanced:2", "balanced:-1", "even", "shuffled:0.5", ""])
def test_what_is_not_a_sampling(text: str) -> None:
    with pytest.raises(ConfigError, match="--sampling"):
        read_sampling(text)


@pytest.mark.parametrize("text", ["balanced:", "balanced: "])
def test_a_colon_without_a_number_is_told_what_is_allowed(text: str) -> None:
    with pytest.raises(ConfigError, match="allowed"):
        read_sampling(text)


def test_they_join_the_changes_to_a_recipe() -> None:
    options = Namespace(sampling="balanced", goal="f1")
    found = with_uneven({"task": {"kind": "classify"}, "epochs": 3}, options)
    assert found == {"task": {"kind": "classify", "goal": {"kind": "f1"}}, "epochs": 3, "sampling": "balanced"}
    assert with_uneven({}, Namespace()) == {}
