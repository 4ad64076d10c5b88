"""Every registered experiment: its verdict follows the claim, its results are JSON, its figures can be drawn."""

import json
import math
from dataclasses import fields
from itertools import pairwise

import pytest

from vitrail.config import apply, to_dict
from vitrail.lab import EXPERIMENTS, Experiment
from vitrail.report import Report

EACH = pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)


@EACH
def test_the_verdict_follows_a_claim_that_is_true_by_construction(experiment: Experiment) -> None:
    verdict = experiment.verdict(experiment.true_case())
    assert verdict.outcome == "holds", verdict.text


@EACH
def test_the_verdict_follows_a_claim_that_is_false_by_construction(experiment: Experiment) -> None:
    verdict = experiment.verdict(experiment.false_case())
    assert verdict.outcome == "fails"
    assert verdict.text


@EACH
def test_results_are_strict_json_and_enough_for_figures_and_verdict(experiment: Experiment) -> None:
    for case in (experiment.true_case(), experiment.false_case()):
        stored = json.loads(json.dumps(list(case), allow_nan=False))
        assert experiment.verdict(stored).outcome == experiment.verdict(case).outcome
        shown = Report(experiment.title, experiment.figures(stored))
        assert shown.sections
        assert Report.from_json(shown.to_json()).to_html() == shown.to_html()


@EACH
def test_settings_are_valid_and_told_in_json(experiment: Experiment) -> None:
    for settings in (experiment.quick, experiment.full):
        assert apply(settings, to_dict(settings)) == settings
        assert fields(settings)
    assert experiment.quick != experiment.full or experiment.seconds < 5
    assert 0 < experiment.seconds <= 60
    assert experiment.seeds >= 3


@EACH
def test_what_people_read_is_there(experiment: Experiment) -> None:
    for text in (experiment.claim, experiment.prediction, experiment.falsifier):
        assert text[0].isupper()
        assert text.endswith(".")
    assert "; " in experiment.source  # the document, then its section
    assert len(experiment.claim) < 200
    assert experiment.name == experiment.name.lower().replace(" ", "-")
    for check in experiment.verdict(experiment.true_case()).checks:
        assert math.isfinite(check.least) or math.isfinite(check.most), check.text


def test_names_are_unique() -> None:
    for before, after in pairwise(sorted(experiment.name for experiment in EXPERIMENTS)):
        assert before != after
