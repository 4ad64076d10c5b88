"""Tuning in a budget of time: the default, linear heads, then successive halving over what trains for epochs.

    found = tune("photos/", minutes=30)
    print(found); found.predict("cat.jpg"); found.report()

The folder holds trials/01 (the default), trials/02 ..., each a run like any other; tuning.json, what was tried; and the
chosen model itself, so that every tool opens the folder. Stopped anywhere, the same command goes on: trials that are
over are not repeated, and the one that was interrupted continues from its checkpoint.

Optuna was weighed (5.0, MIT; 0.4 s and five packages more to import): its samplers draw the first ten trials at random,
which is all that half an hour on a CPU has room for; its pruners count epochs, not the seconds of models that differ a
hundredfold; and its storage would be a second record beside the runs. So the search is written here.
"""

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vitrail.config import to_dict
from vitrail.data.dataset import Splits
from vitrail.errors import BusyError, ConfigError, TrainingError, VitrailError
from vitrail.hardware import device as choose_device
from vitrail.strict_json import from_json, to_json
from vitrail.tasks.task import Task, TaskConfig
from vitrail.training.distributed import World
from vitrail.training.first_model import sample
from vitrail.training.first_try import OF_TRAINING
from vitrail.training.linear_head import check_head
from vitrail.training.logs import Logs
from vitrail.training.one_run import one_run
from vitrail.training.plan import Plan
from vitrail.training.probe_size import choose_size, resized, size_choices
from vitrail.training.run import RUNS, data_name
from vitrail.training.tuning.budget import Budget
from vitrail.training.tuning.candidates import Candidate, Given, linear_heads, trained
from vitrail.training.tuning.halving import FACTOR, plan_rungs
from vitrail.training.tuning.journal import FILE, Journal, Trial, is_tuned
from vitrail.training.tuning.keeping import keep_chosen
from vitrail.training.tuning.pilot import Pace, PacesBySize, seconds_of, steps_of
from vitrail.training.tuning.selection import is_perfect
from vitrail.training.tuning.trial_run import (
    OPTIONS,
    default_plan,
    plan_of,
    prepared,
    run_trial,
    with_length,
    without_test,
)
from vitrail.training.tuning.tuned import Tuned

_SHARE = 1 / 3  # of the budget at most, for a default that trains for epochs
_KEPT = 0.4  # of the budget, for what trains for epochs after linear heads
_MOST_CANDIDATES = 27  # of a bracket
_LEAST = 20.0  # seconds of the shortest trial
_WAYS = 3  # candidates whose speed is measured before time is shared out
_TOO_LONG = "takes about"
_MISSES = 12  # candidates in a row that did not fit: no more are tried
_REPORT = 4.0  # seconds for the choice and the report


def tune(
    data: str | Path | None = None, *, minutes: float | None = None, steps: int | None = None,
    folder: str | Path | None = None, resume: bool = False, device: str | torch.device | None = None,
    say: Callable[[str], None] | None = None, **options: Any,
) -> Tuned:  # fmt: skip
    """Searches for `minutes` (or for so many optimiser steps), the default first; options are those of `train`.

    What the options name is the same in all trials. `resume` continues the search in `folder`; the same call again does
    so too, where it was interrupted.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("--minutes searches in one process; start it without torchrun")
    tell = say or (lambda _: None)
    options = {name: value for name, value in options.items() if value is not None}
    if resume:
        journal = _resumed(folder, {"data": data, "minutes": minutes, "steps": steps, **options})
    else:
        journal = _begun(data, Budget.of(minutes, steps), folder, options)
    with one_run(journal.folder, World()):
        try:
            return _Search(journal, choose_device(device), tell).run()
        except (KeyboardInterrupt, SystemExit):
            tell(f"stopped; go on with: vitrail train --resume {journal.folder}")
            raise


def _resumed(folder: str | Path | None, given: Mapping[str, Any]) -> Journal:
    if folder is None or not is_tuned(folder):
        raise TrainingError(f"{folder} holds no search to resume: it has no {FILE}")
    if named := [name for name, value in given.items() if value is not None]:
        raise ConfigError(f"a search is resumed as it was started: leave out {', '.join(named)}")
    return Journal.read(Path(folder))


def _begun(data: str | Path | None, budget: Budget, folder: str | Path | None, options: Mapping[str, Any]) -> Journal:
    """A journal for a new search, or that of the same one, where it was interrupted."""
    if data is None or isinstance(data, Splits):
        raise ConfigError("tuning needs the name of the data: a folder of images, a table, arrays, or a known name")
    if isinstance(options.get("teacher"), torch.nn.Module):
        raise ConfigError("tuning needs the name of the teacher: a run's folder or a file")
    plain = from_json(to_json({name: _plain(one) for name, one in options.items()}))
    fresh = Journal(Path(), {"data": str(data), "options": plain}, budget)
    for path in _folders(str(data)) if folder is None else [Path(folder)]:
        if is_tuned(path) and (found := Journal.read(path)).chosen is None and _same(found, fresh):
            return found
        if not path.exists() or (folder is not None and not _holds_run(path)):
            fresh.folder = path
            return fresh
    raise TrainingError(
        f"{folder} already holds a run; resume it (--resume {folder}), or choose another folder (--out)"
    )


def _plain(option: Any) -> Any:
    if isinstance(option, Path):
        return str(option)
    return to_dict(option) if isinstance(option, TaskConfig) else option


def _folders(data: str) -> Iterator[Path]:
    name = f"{data_name(data, data)}-tuned"
    yield RUNS / name
    yield from (RUNS / f"{name}-{number}" for number in range(2, 10_000))


def _holds_run(path: Path) -> bool:
    return is_tuned(path) or (path / "run.json").exists() or any((path / "checkpoints").glob("step-*"))


def _same(one: Journal, other: Journal) -> bool:
    same = one.budget.kind == other.budget.kind and one.budget.total == other.budget.total
    return same and one.setup == other.setup


class _Search:
    """The state of a search; all that decides is in the journal, so that it can be repeated up to any point."""

    def __init__(self, journal: Journal, device: torch.device, say: Callable[[str], None]) -> None:
        self.journal, self.budget, self.device, self.say = journal, journal.budget, device, say
        self.options: dict[str, Any] = dict(journal.setup["options"])
        self.paces: dict[str, Pace] = {}
        self.sizes = PacesBySize()
        self.reserve = 0.0

    def run(self) -> Tuned:
        """The search, from wherever it stands to its end."""
        self.plan = self._planned()
        self.judge: Task = self.plan.build_task(blank=True)
        if self.journal.chosen is not None:
            self.budget.stop()
            self.say(f"{self.journal.folder} is already complete")
        else:
            self._say_start()
            default = self._default()
            if self.left <= 0:
                self.say("the default has taken all of the budget: nothing else was tried")
            elif is_perfect(self.judge, default):
                self.say(f"nothing can be better than {self.judge.best_metric} 1.0 on these validation images")
            else:
                self.seen = sample(self.plan.data.train)
                self._heads(_KEPT * self.budget.total)
                self._brackets()
                self._heads(0.0)
        return keep_chosen(self.journal, self.plan, self.judge, self.device)

    def _planned(self) -> Plan:
        """What `train` would do, at the image size that it would choose."""
        plan = default_plan(self.journal.setup["data"], self.options, self.device)
        if not (sizes := size_choices(plan)):
            return plan
        if self.journal.size in sizes:
            return resized(plan, self.journal.size)
        self.journal.write()
        plan = self._sized_by_folds(plan, sizes)
        self.journal.size = plan.preprocess.image_size[0]
        self.journal.write()
        return plan

    def _sized_by_folds(self, plan: Plan, sizes: Sequence[int]) -> Plan:
        """At the size that folds choose, or its own where the features of all sizes would take longer than is left."""
        own, said = sizes[0], " and ".join(map(str, sizes))
        self.say(f"chooses between images of {said} pixels by folds of the training images")
        if self.budget.timed:
            forwards = len(plan.data.train) * sum((size / own) ** 2 for size in sizes)
            seconds = forwards * self._pace(without_test(plan)).forward
            if seconds > self.budget.left:
                need = self.budget.text(seconds)
                note = f"images have {own} x {own} pixels: to choose between {said} {_TOO_LONG} {need}"
                plan = resized(plan, own)
                return replace(plan, notes=(*plan.notes, note))
        with Logs(self.journal.folder, silent=True) as logs:
            return choose_size(plan, world=World(), device=self.device, logs=logs)

    def _say_start(self) -> None:
        done = len(self.journal.scored)
        if self.journal.trials:
            self.say(f"{self.journal.folder} goes on after {done} trials, {self.budget.text(self.budget.left)} left")
            return
        for note in self.plan.notes:
            self.say(note)
        self.journal.write()

    @property
    def left(self) -> float:
        """What is left for trials."""
        return self.budget.left - self.reserve

    def _pace(self, plan: Plan) -> Pace:
        if not self.budget.timed:
            return steps_of(plan)
        config = plan.config
        trained = (config.lora, config.freeze_until, config.probe, config.fit_head, config.augment, config.mix)
        key = f"{plan.start} {plan.model} {plan.preprocess.image_size} {trained}"
        if key not in self.paces:
            packs = prepared(plan, self.journal.folder)
            self.paces[key] = seconds_of(plan, packs, self.device)
        return self.paces[key]

    def _default(self) -> Trial:
        """The first trial: what `train` does without a budget, cut to a third of it where it trains for epochs."""
        plan = without_test(self.plan)
        pace, config = self._pace(plan), plan.config
        tests = 0 if self.plan.data.test is None else len(self.plan.data.test)
        self.reserve = _REPORT + 2 * tests * pace.forward if self.budget.timed else 0.0
        method = "linear head" if config.probe is not None else "training" if plan.start is None else "fine-tuning"
        traits = {"method": method, "weights": plan.start or "none", "size": "default"}
        known = self.journal.trials.get("default")
        if known is None:
            epochs = None if config.probe is not None else max(1, pace.epochs(_SHARE * self.left, config.epochs))
            cut = epochs is not None and epochs < config.epochs
            reason = f"{epochs} of the default's {config.epochs} epochs, to fit in a third of the budget" if cut else ""
            known = Trial(
                key="default", number=1, about="the default", traits=traits, state="started", epochs=epochs,
                epoch_cost=pace.epoch, reason=reason,
            )  # fmt: skip
        if known.scored:
            return known
        return self._run(known, plan)

    def _run(self, trial: Trial, plan: Plan) -> Trial:
        """Trains what is written down as started."""
        self.journal.keep(trial)
        length = "" if trial.epochs is None else f", {trial.epochs} epoch{'s' if trial.epochs > 1 else ''}"
        self.say(f"trial {trial.number}: {trial.about}{length}{f' ({trial.reason})' if trial.reason else ''}")
        plan = with_length(plan, trial.epochs, trial.epoch_cost, timed=self.budget.timed)
        done = run_trial(
            trial,
            plan,
            self.journal.folder,
            device=self.device,
            val=self.options.get("val"),
            expired=self._expired(trial),
        )
        self.budget.charge(done.spent)
        name = self.judge.best_metric
        self.say(f"  {name} {done.metrics[name]:.4f}; {self.budget.text(self.left)} left")
        return self.journal.keep(done)

    def _expired(self, trial: Trial) -> Callable[[], bool]:
        """Trials leave room for the end; the default does not, and makes one epoch in any case."""
        if trial.number == 1:
            return lambda: self.budget.timed and trial.epochs != 1 and self.budget.left <= 0
        return lambda: self.budget.timed and self.left <= 0

    def _trial(self, key: str, candidate: Candidate, amount: float, *, above: int = 0) -> Trial:
        """A trial of a candidate that costs at most so much, for more epochs than `above`; or why it was left out."""
        known = self.journal.trials.get(key)
        if known is not None and known.state != "started":
            return known
        trial = known or Trial(key=key, number=0, about=candidate.about, traits=candidate.traits, state="left out")
        try:
            plan = without_test(plan_of(self.plan, candidate, self.options, self.device))
            if known is None:
                trial = self._sized(trial, plan, amount, above)
            return self._run(trial, plan) if trial.state == "started" else self.journal.keep(trial)
        except BusyError:
            raise
        except (VitrailError, MemoryError, torch.OutOfMemoryError) as error:
            reason = str(error) if isinstance(error, VitrailError) else "not enough memory"
            return self.journal.keep(replace(trial, state="left out", reason=reason))

    def _sized(self, trial: Trial, plan: Plan, amount: float, above: int) -> Trial:
        """The same with a number and the epochs that fit, or with the reason why it does not fit."""
        if fitted := plan.config.probe is not None:
            check_head(plan.build_task(blank=True))
        tests = 0 if self.plan.data.test is None else len(self.plan.data.test)
        epochs = 1 if fitted else plan.config.epochs
        way, pixels = (trial.traits["method"], trial.traits["weights"]), math.prod(plan.preprocess.image_size)
        on_cpu = self.budget.timed and self.device.type == "cpu"  # on a GPU, small images cost as much as larger ones
        for pace in self.sizes.paces(way, pixels, lambda: self._pace(plan)) if on_cpu else (self._pace(plan),):
            room = min(amount, self.left - tests * pace.forward if self.budget.timed else self.left)
            fits = pace.epochs(room, epochs)
            if fits <= above:
                break
        if fits <= above:
            need = self.budget.text(pace.cost(above + 1))
            why = f"{_TOO_LONG} {need} at least, there were {self.budget.text(room)}"
            return replace(trial, reason="was trained for as long before" if epochs <= above else why)
        number = self.journal.next_number()
        return replace(trial, number=number, state="started", epochs=None if fitted else fits, epoch_cost=pace.epoch)

    def _heads(self, kept: float) -> None:
        """Linear heads, each of them if it leaves so much of the budget: one pass over the images."""
        if OF_TRAINING & {name.split(".")[0] for name in self.options}:
            return
        for candidate in linear_heads(self.seen, self._given(), default_size=max(self.plan.preprocess.image_size)):
            key = f"head {candidate.key}"
            if not kept and key in self.journal.trials:  # it was made, cannot be, or had too little room
                if self.journal.trials[key].scored or not self.journal.trials[key].reason.startswith(_TOO_LONG):
                    continue
                key = f"late {key}"
            if (room := self.left - kept) <= 0:
                return
            same = candidate.start == self.plan.start and "image_size" not in candidate.changes
            if not (same and self.plan.config.probe is not None):
                self._trial(key, candidate, room)

    def _given(self) -> Given:
        keys = frozenset(self.options.keys() - set(OPTIONS))
        return Given(
            start=self.options.get("start"), model=self.options.get("model"), recipe="recipe" in self.options, keys=keys
        )

    def _brackets(self) -> None:
        """Successive halving until the budget or the candidates are at an end."""
        size = max(self.plan.preprocess.image_size)
        queue = list(trained(self.seen, self._given(), default_size=size, seed=self.plan.config.seed))
        least = self._least(queue[:_WAYS])
        for number in range(len(queue)):
            if number == len(self.journal.brackets):
                rungs = plan_rungs(self.left, least, candidates=min(len(queue), _MOST_CANDIDATES))
                if not rungs:
                    return
                self.journal.brackets.append(rungs)
                self.journal.write()
            queue = self._nearest_first(queue) if number else queue
            taken = self._bracket(number, queue)
            queue = queue[taken:]

    def _least(self, ways: Sequence[Candidate]) -> float:
        """What the shortest trial gets: two epochs of the cheapest way, or one; in steps, one of the default."""
        if not self.budget.timed:
            return self.journal.trials["default"].epoch_cost
        paces = []
        for candidate in ways:
            with contextlib.suppress(VitrailError):  # its trial says why
                paces.append(self._pace(without_test(plan_of(self.plan, candidate, self.options, self.device))))
        one, two = (max(_LEAST, min((pace.cost(epochs) for pace in paces), default=_LEAST)) for epochs in (1, 2))
        return two if two <= self.left else one

    def _nearest_first(self, queue: list[Candidate]) -> list[Candidate]:
        """Variations of the way that is best so far first."""
        ways = [trial for trial in self.journal.scored if trial.epochs is not None and "weights" in trial.traits]
        if not ways:
            return queue
        best = self._ranked(ways)[0].traits
        return sorted(queue, key=lambda one: any(one.traits.get(name) != best[name] for name in ("method", "weights")))

    def _ranked(self, trials: Iterable[Trial]) -> list[Trial]:
        """The best first; of equals, the earlier."""
        ranked: list[Trial] = []
        for trial in trials:
            better = [self.judge.is_better(trial.metrics, other.metrics) for other in ranked]
            ranked.insert(better.index(True) if True in better else len(ranked), trial)
        return ranked

    def _bracket(self, number: int, queue: list[Candidate]) -> int:
        """Runs the rungs of a bracket; returns how many candidates it took from the queue."""
        first, *rest = self.journal.brackets[number]
        pool, taken, misses = dict[str, Candidate](), 0, 0
        trials: list[Trial] = []
        for candidate in queue:
            if len(trials) == first.trials or misses == _MISSES or self.left <= 0:
                break
            trial = self._trial(f"{number}.0 {candidate.key}", candidate, first.each)
            taken, misses = taken + 1, 0 if trial.scored else misses + 1
            if trial.scored:
                trials.append(trial)
                pool[trial.key.partition(" ")[2]] = candidate
        for height, rung in enumerate(rest, start=1):
            trials = [
                self._promoted(f"{number}.{height}", trial, pool, self.left if rung is rest[-1] else rung.each)
                for trial in self._ranked(trials)[: max(1, len(trials) // FACTOR) if trials else 0]
            ]
        return max(taken, 1)

    def _promoted(self, rung: str, trial: Trial, pool: Mapping[str, Candidate], amount: float) -> Trial:
        """The same candidate trained for longer, where that is possible."""
        name = trial.key.partition(" ")[2]
        longer = self._trial(f"{rung} {name}", pool[name], amount, above=trial.epochs or 0)
        return longer if longer.scored else trial
