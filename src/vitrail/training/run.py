"""From data to a trained, evaluated model: the parts put together, and what comes of them.

    run = train("photos/", model="vit_small_patch16", epochs=20)
    run.metrics["accuracy"], run.model, run.report()

A run's folder holds model.safetensors and config.json (the best model: `vitrail.load` takes the folder), best.json,
metrics.jsonl, run.json (everything that was decided) and checkpoints/; task.safetensors holds what a task learned
beside its model, such as a decoder.
"""

import inspect
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.data.dataset import Dataset
from vitrail.data.feeds.choice import make_feed
from vitrail.data.feeds.coming import Coming, Rewind
from vitrail.data.feeds.decode_process import prepared
from vitrail.data.feeds.feed import ImageSet
from vitrail.data.sources.catalogue import KNOWN
from vitrail.data.sources.folder import SPLIT_NAMES
from vitrail.data.sources.table import SUFFIXES as TABLES
from vitrail.errors import ConfigError, TrainingError, WriteError, nearest
from vitrail.hardware import device as choose_device
from vitrail.hardware import own_stream
from vitrail.models.backbone import Backbone
from vitrail.report.metric import figures
from vitrail.runs.evaluate import Evaluation, evaluate_model
from vitrail.runs.record import Record, Result
from vitrail.runs.trained import TrainedModel, open_model
from vitrail.strict_json import to_json
from vitrail.tasks.answer import Examples
from vitrail.training.assemble import Packs, assemble, deterministic, prepare_data, validation_batch_size
from vitrail.training.compiling import decide
from vitrail.training.config import TrainConfig, usual_name
from vitrail.training.distributed import Shard, World, join, launcher, restarted
from vitrail.training.environment import changed, environment, threads_of, use_threads
from vitrail.training.ledger import Ledger
from vitrail.training.linear_head import fit_probe
from vitrail.training.logs import Logs, Sink
from vitrail.training.loop import Loop
from vitrail.training.one_run import one_run
from vitrail.training.plan import Plan, Source, Teacher, make_plan, read_plan
from vitrail.training.probe_size import choose_size
from vitrail.training.task_choice import RENAMED, TASKS_KEY, TaskChoice
from vitrail.training.writable import write_barrier

_NOTHING_TO_SHARD = "--shard fsdp is ignored with one process; start more: torchrun --nproc-per-node N -m vitrail train"
RUNS = Path("runs")  # where a run goes whose folder was not named
# What options of the command line are called here, where it is not their own name.
_IN_PYTHON = {
    "out": "folder=",
    "from": "start=",
    "log": "sinks=",
    "lr": 'optimiser={"lr": ...}',
    "layer_decay": 'optimiser={"layer_decay": ...}',
    "goal": 'task={"goal": ...}',
    "folds": "vitrail.training.folds.train_folds(data, folds=...)",
}


@dataclass(frozen=True, kw_only=True, repr=False)
class Run(TrainedModel):
    """A run that is over: the best model, its metrics on validation images, and those on test images (`test_...`)."""

    folder: Path
    plan: Plan
    packs: Packs
    evaluation: Evaluation  # on test images where there are some, else on validation images
    metrics: Mapping[str, float]
    history: Sequence[Mapping[str, Any]]
    best_epoch: int | None  # whose model this is
    seconds: Mapping[str, float]  # by phase: where the time went since the run was started or resumed
    ended_before: bool = False  # whether nothing was left to train when it was resumed

    @property
    def model(self) -> Backbone:
        """The best model, ready for use."""
        return self.backbone

    @property
    def config(self) -> TrainConfig:
        """The recipe, with everything that was decided."""
        return self.plan.config

    def report(self) -> Path:
        """Writes report.html into the folder and returns its path."""
        from vitrail.profiling import describe  # noqa: PLC0415
        from vitrail.training.report import Outcome, name_model, write_report  # noqa: PLC0415
        from vitrail.training.report.attention import attention_section  # noqa: PLC0415

        found, task, record = self.evaluation, self.task, Record.read(self.folder)
        prepare = self._prepared()
        sections = list(task.sections(found.results, Examples(found.worst, found.first, self.preprocess)))
        if task.output_names:
            shown = attention_section(task.explained(), found.first, preprocess=prepare, target=self._explained)
            sections += [] if shown is None else [shown]
        name, about = name_model(self.config.model, self.config.options, self.backbone, getattr(task, "head", None))
        outcome = Outcome(
            title=f"{self.folder.name}: {name} on {found.name}",
            model=about,
            lead=task.lead(found.results),
            split="test" if self.packs.test is not None else "validation",
            command=record.command,
            recipe=record.recipe,
            environment=record.environment,
            notes=[*self.plan.notes, *([task.calibration()] if task.calibration() else [])],
            history=[_row(entry) for entry in self.history],
            metrics=task.about_metrics,
            best_metric=task.best_metric,
            best_epoch=self.best_epoch,
            figures=figures(found.results, task.about_metrics, task.intervals(found.results)),
            sections=sections,
            cost=describe(self.backbone),
            skipped=self.packs.skipped,
            seconds=self.seconds,
        )
        return write_report(outcome, self.folder / "report.html")

    @torch.no_grad()
    def _explained(self, images: Tensor) -> Tensor:
        """The output that an explanation of prepared images shows: B."""
        return self.task.explain_target(self.task.outputs(images), None)

    def _prepared(self) -> Callable[[Tensor], Tensor]:
        packed = self.packs.val if self.packs.test is None else self.packs.test
        return packed.prepare(self.preprocess)


def _sample_name(data: Dataset, index: int) -> str:
    """A sample's name inside its data set: a report shows it in little room."""
    key = data.key(index)
    return f"image {key}" if key.isdigit() else key


def _row(entry: Mapping[str, Any]) -> dict[str, float | None]:
    """An epoch as the report's curves take it, and as metrics.jsonl has it."""
    row = {f"{split}/{name}": value for split in ("train", "val") for name, value in entry.get(split, {}).items()}
    return row | {name: entry[name] for name in ("epoch", "lr", "images_per_second", "seconds", "waiting")}


def train(
    data: Source | None = None, *, model: str | None = None, task: TaskChoice | None = None,
    label: str | Sequence[str] | None = None, recipe: str | Path | Mapping[str, Any] | None = None,
    folder: str | Path | None = None, resume: bool = False, start: str | Path | None = None,
    teacher: Teacher | None = None, val: str | Path | float | None = None, group: str | None = None,
    fold: tuple[int, int] | None = None, device: str | torch.device | None = None, shard: Shard = "ddp",
    sinks: Sequence[Sink] = (), silent: bool = False, ledger: Ledger | None = None, **changes: Any,
) -> Run:  # fmt: skip
    """Trains a model on data, gives back the best one; keywords change the recipe: epochs=20, optimiser={"lr": 1e-4}.

    `data` is anything that `open_data` knows; `task` is inferred from them where it is left out, and `label` names the
    column of a table with the target. `group` keeps images together that belong together: a column, a pattern of their
    paths, or "duplicates"; `fold` (i, k) holds the i-th of k parts out as test images. `start` names weights to
    fine-tune, `teacher` a model to learn from. `resume` continues the run in `folder`, bit by bit as if it had never
    stopped. Under torchrun all processes train together; one that torchrun restarted resumes by itself. `ledger` notes
    down where the time goes, from before this call on.
    """
    _check_keywords(changes)
    ledger = ledger or Ledger()
    with prepared(device), ledger.phase("open"), join(where := choose_device(device)) as world:
        continues = folder is not None and (resume or (restarted() and any(Path(folder, "checkpoints").glob("step-*"))))
        if continues:
            changes |= {"model": model} if model is not None else {}
            plan = read_plan(path := Path(str(folder)), data=data, teacher=teacher, task=task, changes=changes)
        elif resume or data is None:
            raise ConfigError("train needs data, or resume=True and the folder of a run")
        else:
            if world.main:
                _check_folder(RUNS if folder is None else Path(folder))
            plan = make_plan(
                data, model=model, task=task, label=label, recipe=recipe, start=start, teacher=teacher, val=val,
                group=group, fold=fold, device=where, changes=changes,
            )  # fmt: skip
            path = world.collect(_folder(folder, plan))[0]
        with one_run(path, world), Logs(path, sinks=sinks, main=world.main, silent=silent, ledger=ledger) as logs:
            if shard == "fsdp" and world.size == 1:
                logs.say(_NOTHING_TO_SHARD)
            plan = plan if continues else choose_size(plan, world=world, device=where, logs=logs)
            return train_plan(
                plan, path, world=world, device=where, shard=shard, logs=logs, val=val, continues=continues
            )


def train_plan(
    plan: Plan, path: Path, *, world: World, device: torch.device, logs: Logs, continues: bool, shard: Shard = "ddp",
    val: str | Path | float | None = None, expired: Callable[[], bool] | None = None,
) -> Run:  # fmt: skip
    """A run from its plan to its evaluation; `expired` ends it early, with the best model until then."""
    for note in () if continues else plan.notes:
        logs.say(note)
    options: dict[str, Any] = {"world": world, "device": device, "shard": shard, "logs": logs, "val": val}
    options |= {"continues": continues, "expired": expired}
    try:
        early = device.type == "cuda" and plan.config.probe is None  # a CPU has no time for both
        return _attempt(plan, path, background=early, **options)
    except Rewind:
        logs.say("an image cannot be read: the run begins again when all others are packed")
    return _attempt(plan, path, background=False, **options)


def _attempt(
    plan: Plan, path: Path, *, world: World, device: torch.device, shard: Shard, logs: Logs,
    val: str | Path | float | None, continues: bool, expired: Callable[[], bool] | None, background: bool,
) -> Run:  # fmt: skip
    """A run from its data on; Rewind if its images were still being packed and one of them cannot be read."""
    ledger = logs.ledger
    with ledger.phase("read images"):
        plan, packs = prepare_data(plan, world, logs, background=background)
    if plan.config.compile == "auto":
        with ledger.phase("forecast"):
            plan = decide(plan, len(packs.train), device, world, logs)
    before = Record.read(path).environment if continues else {}
    with deterministic(plan.config), own_stream(device), use_threads(threads_of(plan, before, device, logs)):
        with ledger.phase("build"):
            loop = assemble(plan, packs, path, world=world, device=device, shard=shard, logs=logs, blank=continues)
            loop.expired = expired
        if continues:
            plan = _resume(loop, plan, before)
        elif world.main:
            _begin(plan, loop, val)
        ended_before = loop.over
        with ledger.phase("train"):
            _learn(loop, plan, packs)
            world.wait()  # until the best model is written
        if isinstance(packs.train, Coming) and packs.train.done:
            logs.say(packs.train.filling.sentence())
        with ledger.phase("evaluate"):
            return finish(plan, packs, loop, ended_before=ended_before)


def _check_keywords(changes: Mapping[str, Any]) -> None:
    """Refuses a keyword that neither `train` nor a recipe has, and names the one that was meant."""
    options = [field.name for field in fields(TrainConfig)]
    for name in changes:
        if name not in (*options, RENAMED, TASKS_KEY):
            raise ConfigError(f"{name} is not an option of train or of a recipe; {_hint(name, options)}")


def _hint(name: str, options: Sequence[str]) -> str:
    """What a keyword may have been meant for."""
    if name in _IN_PYTHON:
        return f"what the command line calls --{name.replace('_', '-')} is {_IN_PYTHON[name]} in Python"
    if (key := usual_name(name)) is not None:
        first, _, last = key.partition(".")
        return f"here that is {first}={{{to_json(last)}: ...}}" if last else f"here that is {first}="
    return nearest(name, {*options, *inspect.signature(train).parameters} - {"changes"})


def _check_folder(folder: Path) -> None:
    """Refuses a folder that cannot be written, before any work is done."""
    if (why := write_barrier(folder)) is not None:
        raise TrainingError(f"the run cannot be written to {folder}: {why}; choose another folder (--out)")


def _resume(loop: Loop, plan: Plan, before: Mapping[str, Any]) -> Plan:
    """Resumes a run from its last checkpoint; a note on another environment is kept with it."""
    loop.resume()
    if loop.over:
        return plan
    now, epochs, folder = loop.progress, loop.config.epochs, loop.folder
    loop.logs.say(f"{folder} resumes after step {now.step}, in epoch {now.epoch + 1} of {epochs}")
    note = changed(before, _environment(loop))
    if note is None or note in plan.notes:
        return plan
    loop.logs.say(note)
    plan = replace(plan, notes=(*plan.notes, note))
    if loop.world.main:
        replace(Record.read(folder), notes=plan.notes).write(folder)
    return plan


def _environment(loop: Loop) -> dict[str, Any]:
    return environment(loop.device, processes=loop.world.size, precision=loop.step.precision)


def _learn(loop: Loop, plan: Plan, packs: Packs) -> None:
    """Trains to the end, or fits a probe; an error of the disk names the command to resume."""
    try:
        if plan.config.probe is None:
            loop.run()
        else:
            fit_probe(loop, plan.data.train, packs.train, packs.train.prepare(plan.preprocess))
    except WriteError as error:
        way = f"resume with: vitrail train --resume {loop.folder}" if loop.store.steps() else "start again"
        raise TrainingError(f"{error}. Free some space or check its permissions, then {way}") from error


def _folder(folder: str | Path | None, plan: Plan) -> Path:
    """Where a new run goes: a folder that holds none yet."""
    if folder is not None:
        _refuse_run(Path(folder))
        return Path(folder)
    name = f"{data_name(plan.data.train.name, plan.source)}-{plan.config.model}"
    name += "" if plan.schema else f"-{plan.task.kind}"
    taken = [RUNS / name, *(RUNS / f"{name}-{number}" for number in range(2, 10_000))]
    return next(path for path in taken if not path.exists())


def _refuse_run(folder: Path) -> None:
    if any(Path(folder, "checkpoints").glob("step-*")):
        way = f"resume it (vitrail train --resume {folder}), or choose another folder (--out)"
        raise TrainingError(f"{folder} already holds a run; {way}")


def data_name(name: str, source: str | None) -> str:
    """One word for data, to name a run after: the known name, or the last part of a path that is not a split's name.

    `photos/train`, `photos/train.csv` and `photos (train)` are all "photos".
    """
    if (known := (source or "").partition(":")[0]) in KNOWN:
        return known
    path = Path(re.sub(rf" \(({'|'.join(SPLIT_NAMES)})\)$", "", name))
    while path.stem.lower() in SPLIT_NAMES:
        path = path.absolute().parent
    if path.name in ("", ".."):
        path = path.resolve()
    name = path.stem if path.suffix.lower() in TABLES else path.name
    return name.replace(" ", "-") or "data"


def _begin(plan: Plan, loop: Loop, val: str | Path | float | None) -> None:
    """Writes run.json: what the run is, and what it ran on."""
    folder = loop.folder
    _refuse_run(folder)  # another process may have trained here while this one read its data
    loop.logs.resume(())  # a run that lost its checkpoints may have been here
    command = shlex.join([*launcher(), *sys.argv[1:]])
    try:
        plan.record(val=val, command=command, environment=_environment(loop)).write(folder)
    except WriteError as error:
        reason = error.__cause__ or error
        raise TrainingError(
            f"the run cannot be written to {folder}: {reason}; choose another folder (--out)"
        ) from error


def _evaluated(model: TrainedModel, images: ImageSet, data: Dataset, size: int) -> Evaluation:
    feed = make_feed(images, batch_size=size, seed=0, shuffle=False, device=model.device)
    return evaluate_model(model, feed, names=partial(_sample_name, data))


def finish(plan: Plan, packs: Packs, loop: Loop, *, ended_before: bool) -> Run:
    """The best model of a run that is over, calibrated on validation and evaluated once on test images, if any."""
    folder, progress = loop.folder, loop.progress
    if progress.best is None:
        raise TrainingError(f"no validation gave a finite {loop.learner.task.best_metric}; {folder} has no best model")
    if ended_before:
        loop.logs.say(_ended(plan, loop))
    model = open_model(folder).to(loop.device)
    model.task.clear_calibration()  # of an end before, where the run was resumed
    size = validation_batch_size(plan, loop.device)
    # As the model is kept: validation ran in the precision of training, before thresholds were adopted.
    found = _evaluated(model, packs.val, plan.data.val, size)
    model.task.calibrate(found.outputs, found.targets)
    result = Result(metrics=found.metrics, state=model.task.state())
    if packs.test is not None and plan.data.test is not None:
        found = _evaluated(model, packs.test, plan.data.test, size)
        result = result.with_test(found.metrics)
    if loop.world.main:
        result.write(folder)
    task, metrics = model.task, result.metrics
    scores = [
        f"{name} {metrics[name]:.4f}" for name in (task.best_metric, f"test_{task.best_metric}") if name in metrics
    ]
    what = f"best epoch {progress.best_epoch}" if plan.config.probe is None else "linear head"
    loop.logs.say(f"{what}: {', '.join(scores)}; the model is in {folder}")
    if getattr(task.config, "goal", None) is not None:
        loop.logs.say(task.calibration())
    return Run(
        **{**vars(model), "result": result},
        folder=folder,
        plan=plan,
        packs=packs,
        evaluation=found,
        metrics=metrics,
        history=tuple(progress.history),
        best_epoch=progress.best_epoch,
        seconds=loop.logs.ledger.seconds,
        ended_before=ended_before,
    )


def _ended(plan: Plan, loop: Loop) -> str:
    """The message for a run that is resumed after its end: how to train its model further."""
    done, epochs, folder = loop.progress.epoch, plan.config.epochs, loop.folder
    early = "stopped early, " if done < epochs else ""
    more = shlex.join(["vitrail", "train", plan.source or "DATA", "--from", str(folder)])
    return (
        f"{folder} is already complete, {early}after {done} of {epochs} epochs; its model is in "
        f"{folder / 'model.safetensors'}; to train it further, start a new run from it: {more}"
    )
