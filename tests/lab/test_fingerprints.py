"""What of a file changes the fingerprint of an experiment, and what does not."""

import importlib
import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import vitrail.lab.fingerprints as module
from vitrail.lab import EXPERIMENTS
from vitrail.lab.fingerprints import fingerprint

NUMBERS = itertools.count()
SOURCE = '''"""A made experiment."""

from vitrail.lab.estimates import estimate, slope
from vitrail.lab.experiment import Check, judge
from vitrail.lab.temperature import Temperature as Base


class Made(Base):
    """One."""

    claim = "It is so."
    seconds = 1.0

    def measure(self, settings, *, seed, device):
        """One number."""
        return {"one": _one() + slope([0, 1], [0, 1])}  # exact

    def verdict(self, results):
        return judge([Check(text="one", found=estimate([_two()]))])


def _one():
    return 1


def _two():
    return 2
'''


Of = Callable[[str], str]


@pytest.fixture
def of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Of:
    monkeypatch.syspath_prepend(tmp_path)

    def made(source: str) -> str:
        name = f"made_{next(NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(source)
        importlib.invalidate_caches()
        try:
            return fingerprint(importlib.import_module(name).Made())
        finally:
            sys.modules.pop(name, None)

    return made


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return 1", "return 3"),
        ('{"one": _one()', '{"one": -_one()'),
        ("slope([0, 1], [0, 1])", "slope([0, 1], [0, 2])"),
        ("import estimate, slope", "import estimate, exponent as slope"),
        ("class Made(Base):", "class Made(Base, object):"),
    ],
)
def test_what_measures_counts(of: Of, old: str, new: str) -> None:
    assert SOURCE.count(old) == 1
    assert of(SOURCE) != of(SOURCE.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return 2", "return 3"),
        ("It is so", "It is not so"),
        ("seconds = 1.0", "seconds = 2.0"),
        ("One number", "A number"),
        ("A made", "The made"),
        ("import Check, judge", "import Check, judge, limit"),
        ("class Made", "# a comment\n\n\nclass Made"),
        ("estimate([_two()])", "estimate([_two(), 3])"),
    ],
)
def test_what_can_be_made_again_from_results_does_not(of: Of, old: str, new: str) -> None:
    assert SOURCE.count(old) == 1
    assert of(SOURCE) == of(SOURCE.replace(old, new))


def test_files_of_the_lab_that_it_uses_count(of: Of, monkeypatch: pytest.MonkeyPatch) -> None:
    before = of(SOURCE)
    whole = module._whole
    monkeypatch.setattr(module, "_whole", lambda name: (whole(name)[0] + "#" * name.endswith("estimates"), ()))
    assert of(SOURCE) != before


def test_all_experiments_have_one_of_their_own() -> None:
    assert len({fingerprint(experiment) for experiment in EXPERIMENTS}) == len(EXPERIMENTS)
