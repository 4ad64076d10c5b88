"""Claims of the lab as sentences: with their row, and only where they bear on the advice."""

from types import SimpleNamespace

from support.advised import facts

from vitrail.advice.findings import finding, findings

RECORD = SimpleNamespace(hardware="a GPU", versions={"torch": "2"}, command="vitrail lab scaling", runs=[1, 2, 3])


def test_a_finding_says_its_file_hardware_command_and_verdict() -> None:
    row = finding("scaling", "More is better.", "undecided", "The interval allows both", RECORD)
    (said,) = findings(facts(), [row])
    assert '"More is better." is undecided' in said.text
    assert "3 seeds" in said.text
    assert said.rows == (row,)
    assert row.text() == "undecided, 3 seeds"
    assert (row.set, row.machine, row.command) == ("lab/results/scaling.json", "a GPU; torch 2", RECORD.command)


def test_nothing_is_said_of_other_tasks_and_experiments() -> None:
    assert not list(findings(facts(task="detect"), [finding("scaling", "x", "holds", "y", RECORD)]))
    assert not list(findings(facts(), [finding("low-pass", "x", "holds", "y", RECORD)]))
