import pytest

from vitrail.errors import DataError
from vitrail.lab.estimates import Estimate
from vitrail.lab.experiment import Check, Experiment, condition, judge
from vitrail.lab.temperature import Temperature

IN, OUT, BETWEEN = Estimate(1.5, 1.2, 1.8, 3), Estimate(4.0, 3.0, 5.0, 3), Estimate(2.0, 1.5, 2.5, 3)


def check(found: Estimate, *, essential: bool = True) -> Check:
    return Check(text="a number", found=found, least=1.0, most=2.0, essential=essential)


@pytest.mark.parametrize(("found", "status"), [(IN, "holds"), (OUT, "fails"), (BETWEEN, "undecided")])
def test_the_whole_interval_decides(found: Estimate, status: str) -> None:
    assert check(found).status == status


@pytest.mark.parametrize(
    ("checks", "outcome"),
    [
        ([check(IN), check(IN, essential=False)], "holds"),
        ([check(IN), check(OUT, essential=False)], "holds within a range"),
        ([check(IN), check(BETWEEN, essential=False)], "holds within a range"),
        ([check(IN), check(OUT)], "fails"),
        ([check(BETWEEN), check(OUT)], "fails"),
        ([check(IN), check(BETWEEN)], "undecided"),
    ],
)
def test_the_verdict_follows_from_the_checks(checks: list[Check], outcome: str) -> None:
    verdict = judge(checks)
    assert verdict.outcome == outcome
    assert bool(verdict.text) == (outcome != "holds")


@pytest.mark.parametrize("found", [OUT, BETWEEN])
@pytest.mark.parametrize("checks", [[check(IN)], [check(OUT)]])
def test_a_condition_that_is_not_met_leaves_the_verdict_open(checks: list[Check], found: Estimate) -> None:
    verdict = judge(checks, conditions=[condition("trained", found, least=1.0, most=2.0)])
    assert verdict.outcome == "undecided"
    assert "trained" in verdict.text
    assert judge(checks, conditions=[condition("trained", IN, least=1.0, most=2.0)]).outcome == judge(checks).outcome


def test_a_verdict_of_one_seed_says_so() -> None:
    experiment = Temperature()
    (case,) = experiment.true_case()
    assert "one seed" in experiment.conclude([case]).text
    assert "one seed" not in experiment.conclude([case, case]).text


def test_a_verdict_needs_a_check() -> None:
    with pytest.raises(DataError, match="check"):
        judge([])


def test_an_experiment_without_its_parts_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Experiment()  # type: ignore[abstract]
