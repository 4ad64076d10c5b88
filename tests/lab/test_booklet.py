import json
from dataclasses import replace

import pytest
from support.html_page import HtmlPage

from vitrail.lab.booklet import booklet, findings_json, listing, page
from vitrail.lab.running import Finding, run_experiment
from vitrail.lab.temperature import Temperature


@pytest.fixture(scope="module")
def finding(tmp_path_factory: pytest.TempPathFactory) -> Finding:
    return run_experiment(Temperature(), quick=True, seeds=2, folder=tmp_path_factory.mktemp("lab"))


def test_the_list_names_claim_source_and_time() -> None:
    text = str(listing([Temperature()]))
    assert "temperature" in text
    assert "Principles" in text
    assert " s" in text


def test_a_page_has_claim_verdict_intervals_figures_and_command(finding: Finding) -> None:
    text = str(page(finding))
    for word in (
        "prediction",
        "it fails if",
        "Holds within a range",
        "95 % interval",
        "vitrail lab temperature --quick",
    ):
        assert word in text
    assert "<svg" in page(finding).to_html()


def test_published_results_stand_beside_the_quick_ones(finding: Finding) -> None:
    beside = replace(finding, published=finding.record)
    assert "Verdict of the full run" in page(beside).to_html()
    assert "Verdict of the full run" not in page(finding).to_html()


def test_the_booklet_has_all_verdicts_in_front(finding: Finding) -> None:
    report = booklet([finding, finding])
    assert str(report).count("holds within a range") == 2
    for word in ("quick", finding.record.hardware, "torch"):
        assert word in str(report.sections[1])
    HtmlPage(report.to_html())


def test_json_holds_the_record_that_the_package_keeps(finding: Finding) -> None:
    data = json.loads(findings_json([finding]))
    assert data["verdict"] == "holds within a range"
    assert data["record"]["runs"][1]["seed"] == 1
    assert len(json.loads(findings_json([finding, finding]))) == 2
