"""An experiment: a claim of a source, a prediction that could fail, how it is measured, and the verdict."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch

from vitrail.config import Config
from vitrail.errors import DataError
from vitrail.lab.estimates import Estimate
from vitrail.lab.tuned import edges
from vitrail.report import Section, Unit

Results = Mapping[str, Any]  # what one seed measured, as JSON has it
Status = Literal["holds", "fails", "undecided"]
Outcome = Literal["holds", "holds within a range", "fails", "undecided"]

_REFUTED = "These consequences of the claim were found false"
_UNMET = "The claim was not tested, since these conditions of the measurement are not met"
_OPEN = "These are not decided, since the interval allows both"
THEORY = "Vision Transformers and Modern Computer Vision - Theory"
FOUNDATIONS = "Day 7.1: Vision Transformers - Architecture and Mathematical Foundations"
ARCHITECTURE = "Vision Transformer Architecture"
NEW_APPROACH = "Vision Transformer: new approach to vision processing"
PRINCIPLES = "Vision Transformers (textbook chapter): Principles and Mechanisms"


@dataclass(frozen=True, kw_only=True)
class Settings(Config):
    """The size of an experiment: a frozen dataclass of numbers, strings and tuples of these."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One consequence of a claim: a number that must lie from `least` to `most`.

    It holds if its whole interval lies there, fails if no part of it does, and is undecided otherwise. An `essential`
    check that fails makes the claim fail; another one limits the range in which the claim holds.
    """

    text: str
    found: Estimate
    least: float = -math.inf
    most: float = math.inf
    unit: Unit = ""
    essential: bool = True

    @property
    def status(self) -> Status:
        """Whether the number is where the claim needs it."""
        if self.least <= self.found.low and self.found.high <= self.most:
            return "holds"
        return "fails" if self.found.high < self.least or self.found.low > self.most else "undecided"


def condition(
    text: str, found: Estimate, *, least: float = -math.inf, most: float = math.inf, unit: Unit = ""
) -> Check:
    """What has to be so for the other numbers to concern the claim at all, such as a training that has converged."""
    return Check(text=text, found=found, least=least, most=most, unit=unit, essential=False)


def limit(text: str, found: Estimate, *, least: float = -math.inf, most: float = math.inf, unit: Unit = "") -> Check:
    """A check that limits the range of a claim where it fails."""
    return Check(text=text, found=found, least=least, most=most, unit=unit, essential=False)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of a claim; `text` states the range, or what failed."""

    outcome: Outcome
    text: str
    checks: Sequence[Check]


class Experiment(ABC):
    """One claim with its measurement; results are JSON, so that figures and verdicts can be made again from files.

    Stored results carry a fingerprint of the code that measured them (fingerprints.py). `seconds` is the time of one
    seed of the quick form on one core of the machine of docs/lab.md; `seeds` is the usual number of seeds.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    claim: ClassVar[str]
    source: ClassVar[str]  # document and section
    prediction: ClassVar[str]
    falsifier: ClassVar[str]
    quick: ClassVar[Settings]
    full: ClassVar[Settings]
    seconds: ClassVar[float]
    seeds: ClassVar[int] = 5

    @abstractmethod
    def measure(self, settings: Any, *, seed: int, device: torch.device) -> Results:
        """What one seed gives, as dicts, lists and numbers."""

    @abstractmethod
    def figures(self, results: Sequence[Results]) -> Sequence[Section]:
        """Charts and tables of the results of all seeds."""

    @abstractmethod
    def verdict(self, results: Sequence[Results]) -> Verdict:
        """Whether the claim holds in these results."""

    def conclude(self, results: Sequence[Results]) -> Verdict:
        """The verdict, which also says where it rests on one seed, or on a choice at an edge of its grid (tuned.py)."""
        found = self.verdict(results)
        alone = "Judged from one seed, without an interval" if len(results) == 1 else ""
        return replace(found, text=". ".join(filter(None, (found.text, alone, edges(results)))))

    @abstractmethod
    def true_case(self) -> Sequence[Results]:
        """Results of a system in which the claim is true by construction."""

    @abstractmethod
    def false_case(self) -> Sequence[Results]:
        """Results of a system in which the claim is false by construction."""


def judge(checks: Sequence[Check], *, conditions: Sequence[Check] = (), note: str = "") -> Verdict:
    """The verdict that follows from checks; `note` is added to its text.

    It is undecided where one of the `conditions` does not hold, whatever the checks say.
    """
    if not checks:
        raise DataError("a verdict needs at least one check")
    essential = [check for check in checks if check.essential]
    limits = [check for check in checks if not check.essential and check.status != "holds"]

    def those(status: Status, among: Sequence[Check]) -> str:
        return "; ".join(f'"{check.text}"' for check in among if check.status == status)

    outcome: Outcome = "holds"
    text = ""
    unmet = "; ".join(f'"{check.text}"' for check in conditions if check.status != "holds")
    if unmet:
        outcome, text = "undecided", f"{_UNMET}: {unmet}"
    elif any(check.status == "fails" for check in essential):
        outcome, text = "fails", f"{_REFUTED}: {those('fails', essential)}"
    elif any(check.status == "undecided" for check in essential):
        outcome, text = "undecided", f"{_OPEN}: {those('undecided', essential)}"
    elif limits:
        outcome = "holds within a range"
        parts = {_REFUTED: those("fails", limits), _OPEN: those("undecided", limits)}
        text = ". ".join(f"{what}: {which}" for what, which in parts.items() if which)
    return Verdict(outcome=outcome, text=". ".join(filter(None, (text, note))), checks=(*checks, *conditions))
