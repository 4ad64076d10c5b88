import copy

import pytest

from vitrail import lab
from vitrail.lab.tuned import _choices, choose, chosen, edges


def test_the_highest_score_is_chosen() -> None:
    found = choose([1.0, 2.0, 3.0, 4.0], lambda value: -abs(value - 2.6))
    assert found == {"chosen": 3.0, "grid": [1.0, 2.0, 3.0, 4.0], "scores": pytest.approx([-1.6, -0.6, -0.4, -1.4])}


@pytest.mark.parametrize(("value", "said"), [(1.0, True), (3.0, False), (9.0, True)])
def test_a_choice_at_an_edge_is_said(value: float, said: bool) -> None:
    text = edges([{"demo": {"the_model": {"rate": chosen(value, [1.0, 3.0, 9.0])}}}, {}])
    assert bool(text) == said
    assert not said or f"demo the model rate {value:g} (tried 1 to 9; 1 of 2 seeds)" in text


@pytest.mark.parametrize("name", ["data-size", "pac-bayes"])
def test_verdicts_of_experiments_that_tune_say_it(name: str) -> None:
    (experiment,) = lab.chosen(name)
    (result,) = copy.deepcopy(list(experiment.true_case()))
    assert "edge" not in experiment.conclude([result]).text
    for _, value in _choices(result):
        assert isinstance(value, dict)
        value["chosen"] = value["grid"][0]
    assert "edge" in experiment.conclude([result]).text
    assert experiment.conclude([result]).outcome == "holds"
