"""What came of a search: the trial that was kept, as a trained model, and the page on all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitrail.report import Facts, Report, Section, Table, Text, Unit, Value
from vitrail.report.metric import Metric
from vitrail.report.values import show
from vitrail.runs.evaluate import Evaluation
from vitrail.runs.trained import TrainedModel
from vitrail.tasks.answer import Examples
from vitrail.training.tuning.budget import Budget
from vitrail.training.tuning.journal import Trial
from vitrail.training.tuning.selection import gain

_ABOUT = (
    "Trials were compared by validation images alone. One of them replaces the default only where it is better by more "
    "than one standard error (jackknife over five parts of these images). The score of the best of many trials is too "
    "good, since it is the best by chance, too. The corrected score makes the same choice on four parts and measures "
    "on the fifth; it does not correct for the epoch at which each trial was kept. No trial saw test images."
)


@dataclass(frozen=True, kw_only=True, repr=False)
class Tuned(TrainedModel):
    """A search that is over: the chosen model, opened from its folder, and what led to it."""

    folder: Path
    budget: Budget
    trials: Sequence[Trial]  # the default first, with those that were left out
    default: Trial
    chosen: Trial
    nested: float | None  # score of the choice on images that had no part in it
    tested: Mapping[int, float]  # the best metric on test images, by number of a trial
    evaluation: Evaluation | None  # of the chosen trial: on test images, else on validation images

    @property
    def metrics(self) -> Mapping[str, float]:
        """Of the chosen trial on validation images, and on test images (`test_...`) where there are some."""
        return self.result.metrics if self.result is not None else self.chosen.metrics

    @property
    def default_was_best(self) -> bool:
        """Whether no trial was better than the default by more than chance."""
        return self.chosen.number == self.default.number

    def lines(self) -> list[str]:
        """What a terminal shows at the end."""
        task, name = self.task, self.task.best_metric
        made = [trial for trial in self.trials if trial.scored]
        count = f"{len(made)} trial{'s' if len(made) > 1 else ''} in {self.budget.text(self.budget.spent)}"
        mine, theirs = self.chosen.metrics[name], self.default.metrics[name]
        if self.default_was_best:
            best = max(made[1:], key=lambda trial: gain(task, trial, self.default)[0], default=None)
            nearest = "" if best is None else f"; the best of the others had {_score(task.about_metrics, name, best)}"
            text = f"the default was best: no other was better by more than a standard error{nearest}"
            found = [f"{count}: {text}", f"{name} {self._shown(mine)} on validation images"]
        else:
            found = [
                f"{count}: best is trial {self.chosen.number}, {self.chosen.about}",
                f"{name} {self._shown(mine)} on validation images, with the default {self._shown(theirs)}",
            ]
        if self.nested is not None and len(made) > 1:
            found.append(f"corrected for the choice among {len(made)}: about {self._shown(self.nested)}")
        if self.chosen.number in self.tested:
            other = (
                "" if self.default_was_best else f", with the default {self._shown(self.tested[self.default.number])}"
            )
            found.append(f"test {name} {self._shown(self.tested[self.chosen.number])}{other}")
        return found

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        return f"Tuned({self.about})"

    def report(self) -> Path:
        """Writes report.html into the folder and returns its path."""
        file = self.folder / "report.html"
        Report(f"{self.folder.name}: {len(self.trials)} trials", self._sections()).to_html(file)
        return file

    def _sections(self) -> tuple[Section, ...]:
        shown: tuple[Section, ...] = ()
        if self.evaluation is not None:
            examples = Examples(self.evaluation.worst, self.evaluation.first, self.preprocess)
            shown = tuple(self.task.sections(self.evaluation.results, examples))
        facts: dict[str, Value] = {
            "budget": self.budget.text(self.budget.total), "spent": self.budget.text(self.budget.spent),
            "chosen": f"trial {self.chosen.number}: {self.chosen.about}",
            "its run": str(self.folder / self.chosen.folder),
        }  # fmt: skip
        left_out = [trial for trial in self.trials if not trial.scored]
        return (
            Text("What was found", "\n".join(self.lines())), Facts("Search", facts), self._table(), self._learned(),
            *([_left_out(left_out)] if left_out else []), Text("How to read the scores", _ABOUT), *shown,
        )  # fmt: skip

    def _table(self) -> Table:
        task, name = self.task, self.task.best_metric
        unit = _unit(task.about_metrics, name)
        rows: list[dict[str, Value]] = []
        for trial in self.trials:
            if trial.scored:
                ahead, error = gain(task, trial, self.default)
                rows.append({
                    "trial": trial.number, "what": trial.about, "epochs": trial.epochs, name: trial.metrics[name],
                    "better than the default": ahead, "standard error": error,
                    "test": self.tested.get(trial.number), "seconds": round(trial.seconds, 1),
                    "note": "chosen" if trial.number == self.chosen.number else trial.reason,
                })  # fmt: skip
        units: dict[str, Unit] = dict.fromkeys(rows[0], "")
        units |= {name: unit, "better than the default": unit, "standard error": unit, "test": unit}
        return Table("Trials", units, rows)

    def _learned(self) -> Table:
        """The best trial with each trait."""
        task, name = self.task, self.task.best_metric
        found: dict[tuple[str, str], list[Trial]] = {}
        for trial in self.trials:
            for trait, value in trial.traits.items() if trial.scored else ():
                found.setdefault((trait, value), []).append(trial)
        rows: list[dict[str, Value]] = []
        for (trait, value), trials in sorted(found.items(), key=lambda pair: pair[0][0]):
            best = max(trials, key=lambda trial: gain(task, trial, self.default)[0])
            rows.append({
                "choice": trait, "value": value, "trials": len(trials), f"best {name}": best.metrics[name],
                "trial": best.number,
            })  # fmt: skip
        columns: dict[str, Unit] = {"choice": "", "value": "", "trials": "", "trial": ""}
        return Table("What was learned", columns | {f"best {name}": _unit(task.about_metrics, name)}, rows)

    def _shown(self, value: float) -> str:
        return show(value, _unit(self.task.about_metrics, self.task.best_metric))


def _left_out(trials: Sequence[Trial]) -> Table:
    rows = [{"what": trial.about, "why": trial.reason} for trial in trials]
    return Table("Left out", {"what": "", "why": ""}, rows, fold_after=12)


def _unit(about: Mapping[str, Metric], name: str) -> Unit:
    return about[name].unit if name in about else ""


def _score(about: Mapping[str, Metric], name: str, trial: Trial) -> str:
    return show(trial.metrics[name], _unit(about, name))
