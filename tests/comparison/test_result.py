"""What was found, and which run is the better one."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import vitrail
from vitrail.comparison.difference import Difference
from vitrail.comparison.page import report
from vitrail.comparison.result import Compared, Pair, to_data

pytest.importorskip("scipy")


@pytest.fixture(scope="module")
def found(runs: list[Path]) -> Compared:
    return vitrail.compare(*runs, resamples=20, device="cpu").found


def test_the_better_run_depends_on_the_metric(found: Compared) -> None:
    real = Pair(0, 1, Difference(0.1, (0.05, 0.15), 0.001, 0.001), None)
    assert found.better(real) == 1
    lower = replace(found, metrics={found.best: replace(found.metrics[found.best], higher=False)})
    assert lower.better(real) == 0
    assert found.better(unsure(real)) is None


def unsure(pair: Pair) -> Pair:
    return replace(pair, best=pair.best._replace(corrected=0.2))


def test_plain_data_are_json(found: Compared) -> None:
    plain = to_data(found)
    assert json.loads(json.dumps(plain["pairs"])) == plain["pairs"]
    assert plain["resamples"] == 20
    assert {row["of"] for row in plain["runs"][0]["of_each"]} == {"cat", "dog"}


def test_the_report_says_who_is_better(found: Compared) -> None:
    real = replace(found, pairs=[Pair(0, 1, Difference(0.1, (0.05, 0.15), 0.001, 0.001), None)])
    assert "slow is better than plain" in str(report(real))


def test_a_task_that_cannot_be_paired_says_so(found: Compared) -> None:
    alone = [Pair(0, 1, Difference(0.1, None, None), None)]
    text = str(report(replace(found, resamples=0, pairs=alone, others={}, parts={}, notes=["cannot be paired"])))
    assert "not known" in text
    assert "cannot be paired" in text


def test_equal_runs_have_no_settings_to_list(found: Compared) -> None:
    assert "the same settings" in str(report(replace(found, settings={})))


def test_long_steps_are_whole_milliseconds(found: Compared) -> None:
    slow = replace(found, costs=[one._replace(step=15.24, training=20_000.4) for one in found.costs])
    text = str(report(slow))
    assert "15,240" in text
    assert "20,000" in text
