"""tuning.json: the setup of a search, its brackets and trials; a search that was killed goes on from it exactly."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from vitrail.errors import TrainingError
from vitrail.files import write_json
from vitrail.strict_json import read_json
from vitrail.training.tuning.budget import Budget
from vitrail.training.tuning.halving import Rung

FILE = "tuning.json"
TRIALS = "trials"
_VERSION = 1
_MOST = 1_000_000  # trials of a search, epochs of a trial
State = Literal["started", "over", "left out"]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A trial as it is kept; `key` tells it from others, `number` is 0 where nothing was trained."""

    key: str
    number: int
    about: str
    traits: Mapping[str, str] = field(default_factory=dict)  # method, image size ... as the report compares them
    state: State
    epochs: int | None = None
    epoch_cost: float = 0.0  # of the budget, as it was estimated
    spent: float = 0.0
    seconds: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)  # on validation images
    parts: Sequence[tuple[Mapping[str, float], Mapping[str, float]]] = ()  # on each part of them, and on all others
    reason: str = ""  # why it was left out, or ended early

    @property
    def folder(self) -> str:
        """Its run, inside the folder of the search."""
        return f"{TRIALS}/{self.number:02d}"

    @property
    def scored(self) -> bool:
        """Whether it has a model."""
        return self.state == "over" and bool(self.metrics)


class Journal:
    """The content of tuning.json; each change is on disk before anything depends on it."""

    def __init__(self, folder: Path, setup: Mapping[str, Any], budget: Budget) -> None:
        self.folder, self.setup, self.budget = folder, dict(setup), budget
        self.trials: dict[str, Trial] = {}
        self.brackets: list[list[Rung]] = []
        self.size: int | None = None  # of images, where there were several to choose from
        self.chosen: int | None = None  # the number of a trial, as soon as the search is over

    @property
    def scored(self) -> list[Trial]:
        """The trials that have a model, in order; the default is the first."""
        return [trial for trial in self.trials.values() if trial.scored]

    def keep(self, trial: Trial) -> Trial:
        """Writes a trial down, in place of what was known of it."""
        self.trials[trial.key] = trial
        self.write()
        return trial

    def next_number(self) -> int:
        """The number of the next trial."""
        return 1 + max((trial.number for trial in self.trials.values()), default=0)

    def write(self) -> None:
        """Writes the file as a whole."""
        rows = [{**vars(trial), "metrics": dict(trial.metrics)} for trial in self.trials.values()]
        content = {"version": _VERSION, **self.setup, "budget": self.budget.to_dict(), "chosen": self.chosen}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / FILE, {**content, "size": self.size, "brackets": self.brackets, "trials": rows})

    @classmethod
    def read(cls, folder: Path) -> "Journal":
        """The journal of a folder; TrainingError where it is damaged."""
        try:
            data = dict(read_json(folder / FILE))
            if data.pop("version") != _VERSION:
                raise ValueError("version")
            budget, chosen, size = Budget.from_dict(data.pop("budget")), data.pop("chosen"), data.pop("size", None)
            brackets = [[Rung(*rung) for rung in rungs] for rungs in data.pop("brackets")]
            trials = [_trial(row) for row in data.pop("trials")]
            found = cls(folder, {"data": str(data["data"]), "options": dict(data["options"])}, budget)
            if chosen is not None and chosen not in [trial.number for trial in trials if trial.scored]:
                raise ValueError(f"trial {chosen!r:.50} was chosen, and has no model")
            if not all(type(rung.trials) is int and _is_amount(rung.each) for rungs in brackets for rung in rungs):
                raise ValueError("a bracket is not of numbers")
            if size is not None and type(size) is not int:
                raise ValueError(f"the image size {size!r:.50} is not a number")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise TrainingError(
                f"{folder / FILE} is damaged ({error!r:.300}); start again in another folder"
            ) from error
        found.brackets, found.chosen, found.size = brackets, chosen, size
        found.trials = {trial.key: trial for trial in trials}
        return found


def is_tuned(folder: str | Path) -> bool:
    """Whether a folder holds a search."""
    return (Path(folder) / FILE).is_file()


def over(trial: Trial, **changes: Any) -> Trial:
    """The same trial, ended."""
    return replace(trial, state="over", **changes)


def _trial(row: Mapping[str, Any]) -> Trial:
    """A trial as it was written; ValueError where a value is of another type, or no number of a trial."""
    parts = tuple((_numbers(part), _numbers(rest)) for part, rest in row["parts"])
    trial = Trial(**{**row, "metrics": _numbers(row["metrics"]), "parts": parts})
    texts = (trial.key, trial.about, trial.reason, *trial.traits, *trial.traits.values())
    counts = (trial.number, trial.epochs or 0)
    if not all(isinstance(text, str) for text in texts) or trial.state not in get_args(State):
        raise ValueError(f"the trial {trial.key!r:.50} has a value of another type")
    if not all(type(count) is int and 0 <= count <= _MOST for count in counts):
        raise ValueError(f"the trial {trial.key!r:.50} has a number that is not between 0 and {_MOST:,}")
    if not all(map(_is_amount, (trial.epoch_cost, trial.spent, trial.seconds))):
        raise ValueError(f"the trial {trial.key!r:.50} has a time that is not a number")
    return trial


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Numbers that were undefined are null in JSON."""
    if any(value is not None and type(value) not in (int, float) for value in values.values()):
        raise ValueError("a metric is not a number")
    return {name: math.nan if value is None else float(value) for name, value in values.items()}
