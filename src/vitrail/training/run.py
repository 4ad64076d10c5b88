"""From data to a trained, evaluated model: the parts put together, and what comes of them.

    run = train("photos/", model="vit_small_patch16", epochs=20)
    run.metrics["accuracy"], run.model, run.report()

A run's folder holds model.safetensors and config.json (the best model: `vitrail.load` takes the folder), best.json,
metrics.jsonl, run.json (everything that was decided) and checkpoints/; task.safetensors holds what a task learned
beside its model, such as a decoder.
"""

import inspect
import json
import platform
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vitrail import __version__
from vitrail.data.batches import Batches
from vitrail.data.cache import Packed
from vitrail.data.dataset import Dataset
from vitrail.data.folder import SPLIT_NAMES
from vitrail.data.known import KNOWN
from vitrail.errors import CheckpointError, ConfigError, TrainingError, Unsupported, nearest
from vitrail.hardware import device as choose_device
from vitrail.models.backbone import Backbone
from vitrail.models.checkpoint import load
from vitrail.models.checkpoint.files import read, write_json
from vitrail.tasks.task import Task
from vitrail.training.assemble import (
    BESIDE,
    EVALUATED_AT_ONCE,
    Packs,
    assemble,
    beside_model,
    deterministic,
    preparation,
    prepare_data,
)
from vitrail.training.config import TrainConfig, usual_name
from vitrail.training.distributed import Shard, join, launcher, restarted
from vitrail.training.evaluate import measure
from vitrail.training.logs import Logs, Sink
from vitrail.training.loop import Loop
from vitrail.training.place import barrier
from vitrail.training.plan import Plan, Source, Teacher, make_plan, plan_to_dict, read_plan
from vitrail.training.step import own_stream
from vitrail.training.validate import numbers

_NOTHING_TO_SHARD = (
    "--shard fsdp is left out: one process has nobody to share the model with; torchrun --nproc-per-node N -m vitrail "
    "train ... starts several"
)
_RUNS = Path("runs")  # where a run goes whose folder was not named
# What options of the command line are called here, where it is not their own name.
_IN_PYTHON = {
    "out": "folder=",
    "from": "start=",
    "log": "sinks=",
    "lr": 'optimiser={"lr": ...}',
    "layer_decay": 'optimiser={"layer_decay": ...}',
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that is over: the best model, its metrics on validation images, and those on test images (`test_…`)."""

    folder: Path
    plan: Plan
    packs: Packs
    task: Task
    metrics: Mapping[str, float]
    history: Sequence[Mapping[str, Any]]
    best_epoch: int | None  # whose model this is
    ended_before: bool = False  # whether nothing was left to train when it was resumed

    @property
    def model(self) -> Backbone:
        """The best model, ready for use."""
        return self.task.backbone

    @property
    def config(self) -> TrainConfig:
        """The recipe, with everything that was decided."""
        return self.plan.config

    def report(self) -> Path:
        """Writes report.html into the folder and gives back where it is."""
        from vitrail.profiling import describe  # noqa: PLC0415
        from vitrail.training.training_report import Outcome, name_model, write_report  # noqa: PLC0415

        packed, _ = self._judged()
        about = json.loads((self.folder / "run.json").read_text())
        called, told = name_model(self.config.model, self.config.options, self.model)
        outcome = Outcome(
            title=f"{self.folder.name}: {called} on {packed.name}",
            model=told,
            command=about["command"],
            recipe=about["recipe"],
            environment=about["environment"],
            notes=self.plan.notes,
            history=[_row(entry) for entry in self.history],
            best_metric=self.task.best_metric,
            best_epoch=self.best_epoch,
            metrics=self._figures(),
            **self._shown(),
            cost=describe(self.model),
            skipped=self.packs.skipped,
        )
        return write_report(outcome, self.folder / "report.html")

    def _shown(self) -> dict[str, Any]:
        """What the model does with pictures, by the names that an Outcome has for it."""
        from vitrail.training.evidence import collect, rebuild, views  # noqa: PLC0415

        packed, data = self._judged()
        device, where = next(self.task.parameters()).device, partial(_called, data)
        prepare = preparation(self.plan)
        batches = Batches(packed, batch_size=256, seed=0, shuffle=False, device=device).epoch(0)
        if not self.task.classes:
            return {"rebuilt": rebuild(self.task, next(batches), prepare=prepare, where=where)}
        evidence = collect(self.task, batches, prepare=prepare, classes=self.plan.classes, where=where)
        try:
            return {"evidence": evidence, "views": views(self.model, evidence.examples, prepare=prepare)}
        except Unsupported as reason:
            return {"evidence": evidence, "no_views": str(reason)}

    def _judged(self) -> tuple[Packed, Dataset]:
        """The images that the report speaks of: test where there are some, else validation."""
        if self.packs.test is not None and self.plan.data.test is not None:
            return self.packs.test, self.plan.data.test
        return self.packs.val, self.plan.data.val

    def _figures(self) -> dict[str, float]:
        """The metrics of the images that the report speaks of, and what the best epoch was chosen by."""
        if self.packs.test is None:
            return dict(self.metrics)
        of_test = {name.removeprefix("test_"): value for name, value in self.metrics.items() if name[:5] == "test_"}
        return of_test | {f"val/{self.task.best_metric}": self.metrics[self.task.best_metric]}


def _called(data: Dataset, index: int) -> str:
    """A sample's name inside its data set: a report shows it in little room."""
    key = data.key(index)
    return f"image {key}" if key.isdigit() else key


def _row(entry: Mapping[str, Any]) -> dict[str, float | None]:
    """An epoch as the report's curves take it, and as metrics.jsonl has it."""
    row = {f"{split}/{name}": value for split in ("train", "val") for name, value in entry.get(split, {}).items()}
    return row | {name: entry[name] for name in ("epoch", "lr", "images_per_second", "seconds", "waiting")}


def train(
    data: Source | None = None, *, model: str | None = None, recipe: str | Path | Mapping[str, Any] | None = None,
    folder: str | Path | None = None, resume: bool = False, start: str | Path | None = None,
    teacher: Teacher | None = None, val: str | Path | float | None = None, device: str | torch.device | None = None,
    shard: Shard = "ddp", sinks: Sequence[Sink] = (), silent: bool = False, **changes: Any,
) -> Run:  # fmt: skip
    """Trains a model on data, gives back the best one; keywords change the recipe: epochs=20, optimiser={"lr": 1e-4}.

    `data` is anything that `open_data` knows. `start` names weights to fine-tune, `teacher` a model to learn from.
    `resume` goes on with the run in `folder`, bit by bit as if it had never stopped. Under torchrun all processes
    train together; one that torchrun restarted resumes by itself. What was chosen, and why, is said on the way.
    """
    _check_keywords(changes)
    where = choose_device(device)
    with join(where) as world:
        goes_on = folder is not None and (resume or (restarted() and any(Path(folder, "checkpoints").glob("step-*"))))
        if goes_on:
            changes |= {"model": model} if model is not None else {}
            place = Path(str(folder))
            plan = read_plan(place, data=data, teacher=teacher, changes=changes)
        elif resume or data is None:
            raise ConfigError("train needs data, or resume=True and the folder of a run")
        else:
            if world.main:
                _check_place(_RUNS if folder is None else Path(folder))
            kind = {"model": model, "recipe": recipe, "start": start, "teacher": teacher, "val": val}
            plan = make_plan(data, **kind, changes=changes)  # type: ignore[arg-type]  # a plain dict of keywords
            place = world.collect(_folder(folder, plan))[0]
        with Logs(place, sinks=sinks, main=world.main, silent=silent) as logs:
            for note in () if goes_on else plan.notes:
                logs.say(note)
            if shard == "fsdp" and world.size == 1:
                logs.say(_NOTHING_TO_SHARD)
            plan, packs = prepare_data(plan, world, logs)
            with deterministic(plan.config), own_stream(where):
                loop = assemble(plan, packs, place, world=world, device=where, shard=shard, logs=logs, blank=goes_on)
                if goes_on:
                    _go_on(loop)
                elif world.main:
                    _begin(plan, loop, val)
                ended_before = loop.over
                _learn(loop)
                world.wait()  # until the best model is written
                return finish(plan, packs, loop, ended_before=ended_before)


def _check_keywords(changes: Mapping[str, Any]) -> None:
    """Refuses a keyword that neither `train` nor a recipe has, and names the one that was meant."""
    options = [field.name for field in fields(TrainConfig)]
    for name in changes:
        if name not in options:
            raise ConfigError(f"{name} is not an option of train or of a recipe; {_hint(name, options)}")


def _hint(name: str, options: Sequence[str]) -> str:
    """What a keyword may have been meant for."""
    if name in _IN_PYTHON:
        return f"what the command line calls --{name.replace('_', '-')} is {_IN_PYTHON[name]} in Python"
    if (key := usual_name(name)) is not None:
        first, _, last = key.partition(".")
        return f"here that is {first}={{{json.dumps(last)}: ...}}" if last else f"here that is {first}="
    return nearest(name, {*options, *inspect.signature(train).parameters} - {"changes"})


def _check_place(folder: Path) -> None:
    """Refuses a place where no run can be kept, before any work is done for it."""
    if (why := barrier(folder)) is not None:
        raise TrainingError(f"the run cannot be kept in {folder}: {why}; choose another folder (--out)")


def _go_on(loop: Loop) -> None:
    """Takes a run up where it was left, and says where that is."""
    loop.resume()
    if not loop.over:
        now, epochs = loop.progress, loop.config.epochs
        loop.logs.say(f"{loop.folder} goes on after step {now.step}, in epoch {now.epoch + 1} of {epochs}")


def _learn(loop: Loop) -> None:
    """Trains to the end; where a disk is full or read-only, says how to go on."""
    try:
        loop.run()
    except CheckpointError as error:
        way = f"go on with: vitrail train --resume {loop.folder}" if loop.store.steps() else "start again"
        raise TrainingError(f"{error}. Make room there, or see to its permissions, then {way}") from error


def _folder(folder: str | Path | None, plan: Plan) -> Path:
    """Where a new run goes: a folder that holds none yet."""
    if folder is not None:
        if any(Path(folder, "checkpoints").glob("step-*")):
            way = f"go on with it (vitrail train --resume {folder}), or choose another folder (--out)"
            raise TrainingError(f"{folder} holds a run already; {way}")
        return Path(folder)
    name = f"{called_after(plan.data.train.name, plan.source)}-{plan.config.model}"
    name += "" if plan.config.pretrain is None else f"-{plan.config.pretrain.kind}"
    taken = [_RUNS / name, *(_RUNS / f"{name}-{number}" for number in range(2, 10_000))]
    return next(place for place in taken if not place.exists())


def called_after(name: str, source: str | None) -> str:
    """One word for data, to call a run after: the known name of their source, or the last of a path that is no split's.

    `photos/train`, `photos/train.csv` and `photos (train)` are all "photos".
    """
    if (known := (source or "").partition(":")[0]) in KNOWN:
        return known
    path = Path(re.sub(rf" \(({'|'.join(SPLIT_NAMES)})\)$", "", name))
    while path.stem.lower() in SPLIT_NAMES:
        path = path.absolute().parent
    if path.name in ("", ".."):
        path = path.resolve()
    return path.name.replace(" ", "-") or "data"


def _begin(plan: Plan, loop: Loop, val: str | Path | float | None) -> None:
    """Writes run.json: what the run is, and what it ran on."""
    device, folder = loop.device, loop.folder
    loop.logs.resume(0)  # a run that lost its checkpoints may have been here
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    environment = {
        "vitrail": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": f"{device.type}, {name}",
        "processes": loop.world.size,
        "precision": loop.step.precision,
    }
    command = shlex.join([*launcher(), *sys.argv[1:]])
    try:
        write_json(folder / "run.json", {**plan_to_dict(plan, val=val), "command": command, "environment": environment})
    except CheckpointError as error:
        reason = error.__cause__ or error
        raise TrainingError(f"the run cannot be kept in {folder}: {reason}; choose another folder (--out)") from error


def _measured(plan: Plan, task: Task, packed: Packed, device: torch.device) -> dict[str, float]:
    size = plan.config.batch_size * EVALUATED_AT_ONCE
    batches = Batches(packed, batch_size=size, seed=0, shuffle=False, device=device)
    return numbers(measure(task, batches, prepare=preparation(plan)).results)


def finish(plan: Plan, packs: Packs, loop: Loop, *, ended_before: bool) -> Run:
    """The best model of a run that is over, judged once on the test images where there are some."""
    folder, progress = loop.folder, loop.progress
    if progress.best is None:
        raise TrainingError(f"no validation gave a finite {loop.learner.task.best_metric}; {folder} has no best model")
    if ended_before:
        loop.logs.say(_ended(plan, loop))
    best = json.loads((folder / "best.json").read_text())
    thresholds = best.pop("thresholds", None)
    task = plan.finished(load(folder), thresholds)
    if beside_model(task):
        task.load_state_dict(task.state_dict() | read(folder / BESIDE).tensors)
    task.to(loop.device).eval()
    metrics = best
    # As the model is kept: validation ran in the precision of training, and did not yet use the thresholds it found.
    if task.classes and (thresholds is not None or loop.step.precision != "float32"):
        metrics = _measured(plan, task, packs.val, loop.device)
        if loop.world.main and metrics != best:
            kept = metrics if thresholds is None else metrics | {"thresholds": thresholds}
            write_json(folder / "best.json", kept)
    if packs.test is not None:
        found = _measured(plan, task, packs.test, loop.device)
        metrics |= {f"test_{name}": value for name, value in found.items()}
    told = [f"{name} {metrics[name]:.4f}" for name in (task.best_metric, f"test_{task.best_metric}") if name in metrics]
    loop.logs.say(f"best epoch {progress.best_epoch}: {', '.join(told)}; the model is in {folder}")
    return Run(
        folder=folder,
        plan=plan,
        packs=packs,
        task=task,
        metrics=metrics,
        history=tuple(progress.history),
        best_epoch=progress.best_epoch,
        ended_before=ended_before,
    )


def _ended(plan: Plan, loop: Loop) -> str:
    """What is said to someone who goes on with a run that is over: why it is, and how to train its model on."""
    done, epochs, folder = loop.progress.epoch, plan.config.epochs, loop.folder
    early = "stopped early, " if done < epochs else ""
    more = shlex.join(["vitrail", "train", plan.source or "DATA", "--from", str(folder)])
    return (
        f"{folder} had ended already, {early}after {done} of {epochs} epochs: nothing is left to train, and its model "
        f"is in {folder / 'model.safetensors'}; to train on, begin a new run from it: {more}"
    )
