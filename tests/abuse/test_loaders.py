"""Every loader and parser, given mutants: each is read, or refused in a sentence, in time and within memory.

The long form is `python benchmarks/abuse.py loaders`.
"""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from support.abused.confined import Outcome, confined, judge
from support.abused.loaders import LOADERS, Loader
from support.mutate.raw import damaged

from vitrail.errors import DataError

CASES = 50
FEWER = {"hugging face heads": 15}  # whose files take long to make


@pytest.mark.parametrize("name", LOADERS)
def test_mutants_are_read_or_refused(name: str, tmp_path: Path) -> None:
    cases = FEWER.get(name, CASES)
    outcomes = list(confined(LOADERS[name], range(cases), tmp_path))
    assert [one for one in outcomes if not one.good] == []
    assert len(outcomes) == cases


def abused(load: Any, tmp_path: Path, **limits: Any) -> list[Outcome]:
    """Two cases of a loader that does as the test says with the first."""

    def called(folder: Path) -> Any:
        begun = folder.parent / "tmp" / "begun"  # where a loader may write
        if begun.exists():
            return None
        begun.touch()
        return load(folder)

    made = Loader("made", [lambda: {"a": b"abc"}], {"a": damaged}, called)
    return list(confined(made, (0, 1), tmp_path, **limits))


def test_an_error_in_a_sentence_is_a_refusal(tmp_path: Path) -> None:
    def load(folder: Path) -> None:
        raise DataError("a.csv has no rows")

    first, _ = abused(load, tmp_path)
    assert (first.result, first.text, first.good) == ("refused", "a.csv has no rows", True)


def test_an_error_that_repeats_a_file_is_no_sentence(tmp_path: Path) -> None:
    def load(folder: Path) -> None:
        raise DataError("a line of the file\n" * 100)

    assert abused(load, tmp_path)[0].result == "not a sentence"
    assert judge("x" * 100_000)[0] == "not a sentence"


def test_a_traceback_is_told_with_its_place(tmp_path: Path) -> None:
    first, _ = abused(lambda folder: {}["missing"], tmp_path)
    assert first.result == "traceback"
    assert "KeyError" in first.text
    assert "test_loaders" in first.text


def test_a_loader_that_hangs_is_ended_and_the_next_case_runs(tmp_path: Path) -> None:
    first, second = abused(lambda folder: time.sleep(60), tmp_path, seconds=0.2)
    assert (first.result, second.result) == ("hung", "read")


def test_a_loader_that_dies_is_noticed(tmp_path: Path) -> None:
    first, second = abused(lambda folder: os.abort(), tmp_path)
    assert (first.result, second.result) == ("died", "read")
    assert "SIGABRT" in first.text


def test_memory_is_limited(tmp_path: Path) -> None:
    first, _ = abused(lambda folder: bytearray(200 << 20), tmp_path, megabytes=100)
    assert "MemoryError" in first.text


def test_what_a_loader_writes_outside_is_noticed(tmp_path: Path) -> None:
    first, _ = abused(lambda folder: (folder.parent / "escaped").write_text("x"), tmp_path)
    assert first.result == "reached out"
    assert "escaped" in first.text


def test_a_command_that_a_loader_runs_is_noticed(tmp_path: Path) -> None:
    first, _ = abused(lambda folder: os.system("true"), tmp_path)
    assert first.result == "reached out"
    assert "os.system" in first.text
