"""A trial as a run: its plan from what the user gave and what the candidate says, training, and its scores."""

import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vitrail.errors import Notice
from vitrail.training.assemble import Packs, prepare_data
from vitrail.training.config import change
from vitrail.training.distributed import World
from vitrail.training.logs import Logs
from vitrail.training.one_run import one_run
from vitrail.training.plan import Plan, make_plan
from vitrail.training.run import Run, train_plan
from vitrail.training.tuning.candidates import Candidate
from vitrail.training.tuning.journal import Trial, over
from vitrail.training.tuning.selection import parted_scores

OPTIONS = ("model", "task", "label", "recipe", "start", "teacher", "val", "group")  # of `train`, beside a recipe's keys
_SAVED = 60  # seconds between checkpoints


def default_plan(data: str, options: Mapping[str, Any], device: torch.device) -> Plan:
    """What `train` would do with the same options on the same device."""
    named = {name: options[name] for name in OPTIONS if name in options}
    changes = {name: value for name, value in options.items() if name not in OPTIONS}
    return make_plan(data, **named, device=device, changes=changes)


def plan_of(default: Plan, candidate: Candidate, options: Mapping[str, Any], device: torch.device) -> Plan:
    """The plan of a candidate for the same data; what the user gave goes before what it says."""
    given = {name: value for name, value in options.items() if name not in OPTIONS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # heads are new and positions resampled in many trials
        plan = make_plan(
            default.data, model=options.get("model", candidate.model), start=options.get("start", candidate.start),
            task=options.get("task"), recipe=options.get("recipe"), teacher=options.get("teacher"),
            device=device, changes=_merged(candidate.changes, given),
        )  # fmt: skip
    if candidate.rate != 1.0:
        plan = replace(
            plan, config=change(plan.config, {"optimiser": {"lr": plan.config.optimiser.lr * candidate.rate}})
        )
    return replace(plan, source=default.source, wanted=default.wanted)


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Both, the second before the first; parts such as `optimiser` are merged."""
    found = dict(first)
    for name, value in second.items():
        inner = found.get(name)
        found[name] = {**inner, **value} if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return found


def without_test(plan: Plan) -> Plan:
    """The same without test images: no trial may see them."""
    return replace(plan, data=plan.data._replace(test=None))


def with_length(plan: Plan, epochs: int | None, epoch: float, *, timed: bool) -> Plan:
    """The same for so many epochs, with few checkpoints; a fitted head has no epochs."""
    if epochs is None:
        return plan
    every = max(1, min(epochs, round(_SAVED / max(epoch, 1e-3)))) if timed else 1
    return replace(plan, config=change(plan.config, {"epochs": epochs, "save_every": every, "keep": 1}))


def prepared(plan: Plan, folder: Path) -> Packs:
    """The images of a plan, as its run will see them."""
    with Logs(folder, silent=True) as logs:
        return prepare_data(plan, World(), logs)[1]


def run_trial(
    trial: Trial, plan: Plan, folder: Path, *, device: torch.device, val: Any, expired: Callable[[], bool]
) -> Trial:
    """Trains a trial, or goes on with it where a checkpoint is, and notes down its scores."""
    path, began = folder / trial.folder, time.perf_counter()
    continues = any((path / "checkpoints").glob("step-*"))
    if not continues and path.exists():
        shutil.rmtree(path)  # killed before its first checkpoint
    with one_run(path, World()), Logs(path, silent=True) as logs:
        run: Run = train_plan(
            plan, path, world=World(), device=device, logs=logs, val=val, continues=continues, expired=expired
        )
    parts = parted_scores(run)
    made = len(run.history) if trial.epochs is not None else None
    reason = f"ended by the budget after {made} of {trial.epochs} epochs" if made != trial.epochs else trial.reason
    steps = run.history[-1]["step"] if made else 0
    spent = float(steps or trial.epoch_cost)
    seconds = trial.seconds + time.perf_counter() - began
    shutil.rmtree(path / "checkpoints", ignore_errors=True)  # it is over, and its model is kept
    return over(trial, metrics=dict(run.metrics), parts=parts, spent=spent, seconds=round(seconds, 2), reason=reason)
