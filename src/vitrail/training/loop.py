"""The loop: batches in, steps out, and nothing in it that knows the task.

Everything random in a step comes from (seed, step), everything that must outlive a kill is in `Progress` and `Learner`:
so a run that was stopped anywhere and resumed ends with the same bits as one that never was.
"""

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.data.dataset import Batch
from vitrail.data.feeds.feed import Feed
from vitrail.runs.evaluate import numbers
from vitrail.training.config import TrainConfig
from vitrail.training.interrupts import FiniteCheck, Signals, leave, refuse
from vitrail.training.ledger import FIRST_STEP
from vitrail.training.logs import Logs
from vitrail.training.optim.schedule import Schedule
from vitrail.training.state import Progress, Store
from vitrail.training.step import Step

SAVE_AFTER = 10.0  # seconds after a checkpoint, from which on the end of an epoch writes one; the first epoch does, too
CHECK_EVERY = 10  # steps between checks of a GPU's numbers, since each waits for it; a CPU's are checked every step


@dataclass(kw_only=True)
class Loop:
    """One run: `run` goes from wherever `progress` stands to the end."""

    config: TrainConfig
    step: Step
    feed: Feed
    evaluate: Callable[[], Mapping[str, Any]]  # validation metrics of the task as it stands
    publish: Callable[[Mapping[str, Any]], object]  # keeps the task as it stands, with these metrics, as the best
    schedule: Schedule
    store: Store
    identity: Mapping[str, Any]
    folder: Path
    logs: Logs
    progress: Progress = field(default_factory=Progress)
    expired: Callable[[], bool] | None = None  # asked after each step: whether the time for this run is over

    def __post_init__(self) -> None:
        self.learner, self.world, self.device = self.step.learner, self.step.world, self.step.device
        self.steps = len(self.feed) // self.config.accumulate  # of an epoch
        self.finite = FiniteCheck(self.device)
        self.totals: dict[str, Tensor] = {}  # of the losses of the present epoch
        self._started = False  # whether this process has made a step
        self._saved = -math.inf  # when the last checkpoint was written; until one is, nothing can be resumed
        self.check_every = 1 if self.device.type == "cpu" else CHECK_EVERY

    @property
    def over(self) -> bool:
        """Whether nothing is left to do."""
        return self.progress.stopped or self.progress.epoch >= self.config.epochs

    def run(self, until: int | None = None) -> Progress:
        """Trains to the end, or until so many steps are done."""
        gpus = [self.device] if self.device.type == "cuda" else []
        with Signals() as signals, torch.random.fork_rng(gpus), self.logs:
            while not self.over and self.progress.step != until and not self._out_of_time:
                self._epoch(until, signals)
        return self.progress

    @property
    def _out_of_time(self) -> bool:
        return self.expired is not None and self.expired()

    def resume(self) -> None:
        """Takes the run up where its last whole checkpoint left it."""
        self.progress = self.store.restore(self.learner, self.identity)
        self.totals = {name: torch.tensor(value, device=self.device) for name, value in self.progress.sums.items()}
        self.logs.resume(self.progress.history)
        self._saved = time.perf_counter()

    def save(self) -> Path:
        """Writes a checkpoint of the present moment, which must be a good one."""
        with self.logs.ledger.phase("save"):
            self.progress.sums = self._sums()
            file = self.store.save(self.learner, self.progress, self.identity)
        self._saved = time.perf_counter()
        return file

    def _is_due(self) -> bool:
        """Whether the epoch that is over is followed by a checkpoint; the same in all processes."""
        now, every, steps = self.progress, self.config.save_every, self.config.save_steps
        if self.over or (steps is not None and now.step % steps == 0):
            return True
        if every is not None:
            return now.epoch % every == 0
        (late,) = self.world.most(int(time.perf_counter() - self._saved >= SAVE_AFTER))
        return bool(late)

    def _epoch(self, until: int | None, signals: Signals) -> None:
        now, accumulate = self.progress, self.config.accumulate
        self.learner.task.train()
        began, waited, first = time.perf_counter(), self.feed.waited, now.done
        self.logs.begin(now.epoch, self.config.epochs, self.steps, now.done, waited)
        batches = self.feed.epoch(now.epoch, start=now.done * accumulate)
        while now.done < self.steps and now.step != until and not self._out_of_time:
            with self.logs.ledger.phase("wait for images"):
                parts = [next(batches) for _ in range(accumulate)]
            with self.logs.ledger.phase("train" if self._started else FIRST_STEP):
                self._step(parts)
            self._look(signals)
            if self.config.save_steps and now.step % self.config.save_steps == 0 and now.done < self.steps:
                self._check(signals)
                self.save()
        if now.done == self.steps:
            self._check(signals)
            seconds = time.perf_counter() - began
            images = (now.done - first) * self.config.batch_size
            self._close({
                "seconds": seconds,
                "images_per_second": images / seconds,
                "waiting": (self.feed.waited - waited) / seconds,
            })  # fmt: skip

    def _step(self, parts: Sequence[Batch]) -> None:
        now = self.progress
        losses, norm = self.step(parts, rate=self.rate, epoch=now.epoch, step=now.step)
        for name, value in losses.items():
            self.totals[name] = self.totals[name] + value if name in self.totals else value
        # Under fp16 an infinite gradient is routine: the scaler skips the step and lowers its scale.
        self.finite.watch(now.step, losses["loss"], *([] if self.step.precision == "fp16" else [norm]))
        if self.learner.ema is not None:
            self.learner.ema.update()
        now.step, now.done, self._started = now.step + 1, now.done + 1, True

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return self.config.optimiser.lr * self.schedule(self.progress.step)

    def _look(self, signals: Signals) -> None:
        if self.progress.step % self.check_every == 0 or (signals.received and self.world.size == 1):
            with self.logs.ledger.phase("train"):  # waits for the steps of a GPU
                self._check(signals)
            self.logs.step(self.progress.done, self._means(), self.feed.waited)

    def _check(self, signals: Signals) -> None:
        """Stops the run at a number that is not finite, or, after a save, at a signal that any process got."""
        bad, signal = self.world.most(int(self.finite.first), signals.received)
        if bad >= 0:
            refuse(bad, self.progress.epoch, self.store.steps())
        if signal and self.progress.done < self.steps:
            self.save()
            self.logs.say(f"stopped after step {self.progress.step}; resume with: vitrail train --resume {self.folder}")
            leave(signal)

    def _close(self, speed: Mapping[str, float]) -> None:
        """Ends an epoch: validation, the best model, early stop, checkpoint."""
        now = self.progress
        entry: dict[str, Any] = {
            "epoch": now.epoch + 1,
            "step": now.step,
            "lr": self.config.optimiser.lr * self.schedule(now.step - 1),
        }
        entry |= {"train": self.world.mean(self._means()), **speed}
        now.epoch, now.done, self.totals = now.epoch + 1, 0, {}
        first = now.best is None
        if now.epoch % self.config.eval_every == 0 or now.epoch == self.config.epochs:
            with self.learner.ema.applied() if self.learner.ema else contextlib.nullcontext():
                with self.logs.ledger.phase("validate"):
                    results = self.evaluate()
                entry["val"] = numbers(results)
                if self._is_best(entry["val"]):
                    with self.logs.ledger.phase("save"):
                        self.publish(results)
        now.history.append(entry)
        patience = self.config.early_stop
        now.stopped = patience is not None and now.best_epoch is not None and now.epoch - now.best_epoch >= patience
        if self._is_due():
            self.save()
        self.logs.end(entry, best=now.best_epoch == now.epoch)
        if first and now.best is not None:
            self._explain_warmup(now.best)
        if now.stopped:
            name, epochs = self.learner.task.best_metric, self.config.epochs
            self.logs.say(
                f"stopped at epoch {now.epoch} of {epochs}: no improvement of {name} for {patience} epochs (early_stop)"
            )

    def _is_best(self, results: Mapping[str, float]) -> bool:
        """Whether a validation is the best so far; epochs of the warm-up do not count."""
        now, value = self.progress, results[self.learner.task.best_metric]
        counts = now.step >= self.schedule.warmup or now.epoch == self.config.epochs
        if not counts or not math.isfinite(value) or not self._is_better(results):
            return False
        now.best, now.best_epoch, now.best_step = value, now.epoch, now.step
        return True

    def _explain_warmup(self, best: float) -> None:
        """Says of the first epoch that counts why it goes before a better one of the warm-up, if there was one."""
        task, epoch = self.learner.task, None
        name = task.best_metric
        for entry in self.progress.history:
            if "val" in entry and task.is_better({name: entry["val"][name]}, {name: best}):
                epoch, best = entry["epoch"], entry["val"][name]
        if epoch is not None:
            self.logs.say(
                f"epoch {epoch} had a better {name}, {best:.4f}, but warm-up epochs are never chosen as the best "
                "(schedule.warmup_epochs)"
            )

    def _is_better(self, results: Mapping[str, float]) -> bool:
        """Whether a validation beats the best, as the task sees it."""
        now = self.progress
        if now.best is None or now.best_epoch is None:
            return True
        return self.learner.task.is_better(results, now.history[now.best_epoch - 1]["val"])

    def _sums(self) -> dict[str, float]:
        return self.world.mean({name: float(total) for name, total in self.totals.items()})

    def _means(self) -> dict[str, float]:
        return {name: float(total) / max(self.progress.done, 1) for name, total in self.totals.items()}
