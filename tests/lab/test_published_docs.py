"""The table of full runs in docs/lab.md says what the published results say."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from vitrail.lab import EXPERIMENTS
from vitrail.lab.records import published

PAGE = Path(__file__).parents[2] / "docs" / "lab.md"


class Told(NamedTuple):
    """A row of the table: experiment, verdict, and seconds of each seed."""

    name: str
    verdict: str
    seconds: list[int]


def table() -> Iterator[Told]:
    """The rows below "Full runs", up to the next heading."""
    section = PAGE.read_text().partition("## Full runs\n")[2].partition("\n## ")[0]
    for line in section.splitlines():
        if found := re.match(r"\| `([a-z-]+)` \| \*\*([a-z ]+)\*\*.*?\|(.*)\|$", line):
            seconds = [int(one.replace(",", "")) for one in re.findall(r"\d{1,3}(?:,\d{3})+|\d+", found[3])]
            yield Told(found[1], found[2], seconds)


def test_every_published_run_is_in_the_table_and_no_other() -> None:
    assert sorted(row.name for row in table()) == sorted(one.name for one in EXPERIMENTS if published(one) is not None)


def test_verdicts_and_seeds_are_those_of_the_results() -> None:
    known = {one.name: one for one in EXPERIMENTS}
    for row in table():
        record = published(known[row.name])
        assert record is not None
        assert row.verdict == known[row.name].conclude(record.results).outcome, row.name
        assert len(row.seconds) == len(record.runs), f"{row.name}: a number of seconds for each seed"
        for said, run in zip(row.seconds, record.runs, strict=True):
            assert abs(said - run.seconds) <= 1, row.name


def test_what_is_said_to_be_missing_has_no_results() -> None:
    section = PAGE.read_text().partition("## Full runs\n")[2].partition("\n## ")[0]
    missing = re.search(r"((?:`[a-z-]+`(?:, | and |\s)*)+)have not been\s+measured", section)
    known = {one.name: one for one in EXPERIMENTS}
    for name in re.findall(r"`([a-z-]+)`", "" if missing is None else missing[1]):
        assert published(known[name]) is None, name
