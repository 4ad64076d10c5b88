"""The end of a search: the choice, its score on test images, and the chosen model in the folder of the search."""

import shutil
from dataclasses import replace

import torch

from vitrail.checksums import remove_checksums
from vitrail.runs.evaluate import evaluate_on
from vitrail.runs.record import FILE, FILES, RESULT, Record, Result
from vitrail.runs.trained import open_model
from vitrail.tasks.task import Task
from vitrail.training.plan import Plan
from vitrail.training.tuning.journal import Journal
from vitrail.training.tuning.selection import choose, nested_score
from vitrail.training.tuning.tuned import Tuned


def keep_chosen(journal: Journal, plan: Plan, task: Task, device: torch.device) -> Tuned:
    """Chooses by validation images, then evaluates the chosen trial and the default once on test images, if any."""
    trials, folder = journal.scored, journal.folder
    default, chosen = trials[0], choose(task, trials)
    images, tested, evaluation = plan.data.test or plan.data.val, dict[int, float](), None
    for trial in [chosen] if plan.data.test is None or chosen is default else [default, chosen]:
        evaluation = evaluate_on(open_model(folder / trial.folder).to(device), images)
        if plan.data.test is not None:
            tested[trial.number] = evaluation.metrics[task.best_metric]
    _copy(journal, chosen.folder, f"chosen of {len(trials)} trials (trial {chosen.number}): {chosen.about}")
    result = Result.read(folder / chosen.folder)
    if evaluation is not None and tested:
        result = result.with_test(evaluation.metrics)
    result.write(folder)
    journal.chosen = chosen.number
    journal.budget.stop()
    journal.write()
    return Tuned(
        **vars(open_model(folder).to(device)), folder=folder, budget=journal.budget, default=default, chosen=chosen,
        trials=tuple(journal.trials.values()), nested=nested_score(task, trials), tested=tested, evaluation=evaluation,
    )  # fmt: skip


def _copy(journal: Journal, trial: str, note: str) -> None:
    """Copies the files of a trial's model; best.json follows, with the checksums of all."""
    folder = journal.folder
    remove_checksums(folder)
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
        if name not in (FILE, RESULT) and (folder / trial / name).is_file():
            shutil.copyfile(folder / trial / name, folder / name)
    record = Record.read(folder / trial)
    replace(record, notes=(*record.notes, note)).write(folder)
