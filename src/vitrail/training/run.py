"""From data to a trained, evaluated model: the parts put together, and what comes of them.

    run = train("photos/", model="vit_small_patch16", epochs=20)
    run.metrics["accuracy"], run.model, run.report()

A run's folder holds model.safetensors and config.json (the best model: `vitrail.load` takes the folder), best.json,
metrics.jsonl, run.json (everything that was decided) and checkpoints/.
"""

import contextlib
import json
import os
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vitrail import __version__
from vitrail.data.augment import Augment, Prepare
from vitrail.data.batches import Batches
from vitrail.data.cache import Packed
from vitrail.data.dataset import Batch, Dataset
from vitrail.data.mix import Mix
from vitrail.errors import CheckpointError, ConfigError, TrainingError, Unsupported
from vitrail.hardware import device as choose_device
from vitrail.hardware import precision as choose_precision
from vitrail.layers.lora import add_lora, merge_lora
from vitrail.models.backbone import Backbone
from vitrail.models.checkpoint import load, save
from vitrail.models.checkpoint.files import write_json
from vitrail.tasks.classify import Classify
from vitrail.tasks.task import Task
from vitrail.training.config import TrainConfig, change
from vitrail.training.distributed import RankedStore, Shard, ShardedStore, World, join, restarted, spread, whole
from vitrail.training.ema import Average
from vitrail.training.evaluate import measure
from vitrail.training.logs import Logs, Sink
from vitrail.training.loop import Loop
from vitrail.training.optimiser import build as build_optimiser
from vitrail.training.plan import Plan, Source, Teacher, make_plan, plan_to_dict, read_plan
from vitrail.training.schedule import Schedule
from vitrail.training.state import Learner
from vitrail.training.validate import numbers, validate

_EVALUATED_AT_ONCE = 4  # times the batch of a training step: no activations are kept


@dataclass(frozen=True, kw_only=True)
class Packs:
    """The images of a run, decoded."""

    train: Packed
    val: Packed
    test: Packed | None


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that is over: the best model, its metrics on validation images, and those on test images (`test_…`)."""

    folder: Path
    plan: Plan
    packs: Packs
    task: Task
    metrics: Mapping[str, float]
    history: Sequence[Mapping[str, Any]]

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
        from vitrail.training.evidence import collect, views  # noqa: PLC0415
        from vitrail.training.training_report import Outcome, write_report  # noqa: PLC0415

        packed, data = self._judged()
        device = next(self.task.parameters()).device
        prepare = preparation(self.plan)
        batches = Batches(packed, batch_size=256, seed=0, shuffle=False, device=device)
        evidence = collect(self.task, batches.epoch(0), prepare=prepare, classes=self.plan.classes, where=data.where)
        try:
            seen, unseen = views(self.model, evidence.examples, prepare=prepare), ""
        except Unsupported as reason:
            seen, unseen = (), str(reason)
        about = json.loads((self.folder / "run.json").read_text())
        outcome = Outcome(
            title=f"{self.folder.name}: {self.config.model} on {packed.name}",
            command=about["command"],
            recipe=about["recipe"],
            environment=about["environment"],
            notes=self.plan.notes,
            history=[_row(entry) for entry in self.history],
            metrics=self.metrics,
            evidence=evidence,
            views=seen,
            no_views=unseen,
            cost=describe(self.model),
            skipped=(*self.packs.train.skipped, *self.packs.val.skipped),
        )
        return write_report(outcome, self.folder / "report.html")

    def _judged(self) -> tuple[Packed, Dataset]:
        """The images that the report speaks of: test where there are some, else validation."""
        if self.packs.test is not None and self.plan.data.test is not None:
            return self.packs.test, self.plan.data.test
        return self.packs.val, self.plan.data.val


def _row(entry: Mapping[str, Any]) -> dict[str, float | None]:
    """An epoch as the report's curves take it."""
    val = entry.get("val", {})
    row = {"epoch": entry["epoch"], "loss": entry["train"]["loss"], "val_loss": val.get("nll", val.get("bce"))}
    row |= {name: val.get(name) for name in ("accuracy", "ap") if name in val}
    return row | {name: entry[name] for name in ("lr", "images_per_second", "seconds", "waiting")}


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
            kind = {"model": model, "recipe": recipe, "start": start, "teacher": teacher, "val": val}
            plan = make_plan(data, **kind, changes=changes)  # type: ignore[arg-type]  # a plain dict of keywords
            place = world.collect(_folder(folder, plan))[0]
        with Logs(place, sinks=sinks, main=world.main, silent=silent) as logs:
            for note in plan.notes:
                logs.say(note)
            plan, packs = prepare_data(plan, world, logs)
            with deterministic(plan.config):
                loop = assemble(plan, packs, place, world=world, device=where, shard=shard, logs=logs, blank=goes_on)
                if goes_on:
                    loop.resume()
                elif world.main:
                    _begin(plan, loop, val)
                loop.run()
                world.wait()  # until the best model is written
                return finish(plan, packs, loop)


def _folder(folder: str | Path | None, plan: Plan) -> Path:
    """Where a new run goes: a folder that holds none yet."""
    if folder is not None:
        if any(Path(folder, "checkpoints").glob("step-*")):
            raise TrainingError(f"{folder} holds a run already; go on with it (resume), or choose another folder")
        return Path(folder)
    name = f"{plan.data.train.name.strip('/').split('/')[-1]}-{plan.config.model}".replace(" ", "-")
    taken = [Path("runs", name), *(Path("runs", f"{name}-{number}") for number in range(2, 10_000))]
    return next(place for place in taken if not place.exists())


def prepare_data(plan: Plan, world: World, logs: Logs) -> tuple[Plan, Packs]:
    """Decodes all images once, and fits the batch to a set that is smaller than one."""
    notes, splits = [], plan.data
    if not world.main:
        world.wait()  # the first process writes the cache, the others read it
    train = plan.pack(splits.train, learning=True)
    val = plan.pack(splits.val, learning=False)
    test = None if splits.test is None else plan.pack(splits.test, learning=False)
    if world.main:
        world.wait()
    if skipped := [*train.skipped, *val.skipped]:
        notes.append(f"{len(skipped)} broken images were left out, such as {skipped[0][0]}: {skipped[0][1]}")
    config, unit = plan.config, 2 * world.size * plan.config.accumulate if world.size > 1 else plan.config.accumulate
    if config.batch_size > len(train):
        size = max(len(train) // unit * unit, unit)
        notes.append(
            f"there are only {len(train)} training images: batch_size is {size} instead of {config.batch_size}"
        )
        config = change(config, {"batch_size": size})
    if config.batch_size % config.accumulate:
        raise ConfigError(
            f"batch_size {config.batch_size} does not divide into {config.accumulate} parts to accumulate"
        )
    for note in notes:
        logs.say(note)
    plan = Plan(**{**vars(plan), "config": config, "notes": (*plan.notes, *notes)})
    return plan, Packs(train=train, val=val, test=test)


def preparation(plan: Plan) -> Prepare:
    """What makes the model's input of stored images, without chance."""
    config = plan.backbone_config
    return Prepare(plan.config.augment, image_size=config.image_size, channels=config.channels)


def assemble(
    plan: Plan, packs: Packs, folder: Path, *, world: World, device: torch.device, shard: Shard, logs: Logs,
    blank: bool = False,
) -> Loop:  # fmt: skip
    """Fresh objects for a run from its first step on; `blank`: a checkpoint is about to fill them."""
    config = plan.config
    precision, note = choose_precision(config.precision, device)
    if note is not None:
        logs.say(note)
    task = plan.task(blank=blank).to(device)
    loss = spread(task, world, shard=shard, device=device, precision=precision, compiled=config.compile)
    rows = {"seed": config.seed, "device": device, "rank": world.rank, "world": world.size}
    part, at_once = config.batch_size // config.accumulate, config.batch_size * _EVALUATED_AT_ONCE
    feed = Batches(packs.train, batch_size=part, shuffle=True, drop_last=True, **rows)  # type: ignore[arg-type]
    val = Batches(packs.val, batch_size=at_once, shuffle=False, **rows)  # type: ignore[arg-type]
    judge = partial(validate, task, val, preparation(plan), device=device, precision=precision, world=world)
    logs.images = config.batch_size
    store = ShardedStore if shard == "fsdp" and world.size > 1 else RankedStore
    return Loop(
        config=config,
        learner=Learner(
            task=task,
            optimiser=build_optimiser(task, config.optimiser, device),
            scaler=torch.amp.GradScaler(device.type, enabled=precision == "fp16"),
            ema=None if config.ema is None else Average(task, config.ema),
        ),
        loss=loss,
        feed=feed,
        treat=Treatment(plan),
        evaluate=judge,
        publish=partial(publish, plan, task, folder, world),
        schedule=Schedule.of(config.schedule, epochs=config.epochs, steps=len(feed) // config.accumulate),
        store=store(folder / "checkpoints", keep=config.keep, world=world),
        identity=plan.identity(packs.train),
        folder=folder,
        logs=logs,
        device=device,
        precision=precision,
        world=world,
    )


class Treatment:
    """Augments and mixes the batch of an epoch as a plan says."""

    def __init__(self, plan: Plan) -> None:
        config, model = plan.config, plan.backbone_config
        size = {"image_size": model.image_size, "channels": model.channels}
        self.augment = Augment(config.augment, **size, seed=config.seed)  # type: ignore[arg-type]
        mixes = config.mix.mixup or config.mix.cutmix or config.mix.patch_mixup
        self.mix = Mix(config.mix, num_classes=len(plan.classes), seed=config.seed) if mixes else None

    def __call__(self, batch: Batch, epoch: int) -> Batch:
        """uint8 images -> float images, and soft labels where images are mixed."""
        batch = self.augment(batch, epoch)
        return batch if self.mix is None else self.mix(batch, epoch)


def publish(plan: Plan, task: Task, folder: Path, world: World, results: Mapping[str, Any]) -> None:
    """Writes the model as it stands to the run's folder, as a plain checkpoint that `vitrail.load` takes."""
    state = whole(task.backbone)
    if not world.main:
        return
    with torch.device("meta"):
        model = plan.bare(blank=True)
        if plan.config.lora is not None:
            add_lora(model, plan.config.lora)
    model.load_state_dict(state, assign=True)
    save(merge_lora(model), folder)
    best: dict[str, Any] = {**numbers(results)}
    if "thresholds" in results:
        best["thresholds"] = results["thresholds"].tolist()
    write_json(folder / "best.json", best)


def _begin(plan: Plan, loop: Loop, val: str | Path | float | None) -> None:
    """Writes run.json: what the run is, and what it ran on."""
    device, folder = loop.device, loop.folder
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    environment = {
        "vitrail": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": f"{device.type}, {name}",
        "processes": loop.world.size,
        "precision": loop.precision,
    }
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    try:
        write_json(folder / "run.json", {**plan_to_dict(plan, val=val), "command": command, "environment": environment})
    except CheckpointError as error:
        raise TrainingError(f"the run cannot be kept in {folder}: {error}; choose another folder") from error


def finish(plan: Plan, packs: Packs, loop: Loop) -> Run:
    """The best model of a run that is over, judged once on the test images where there are some."""
    folder, progress = loop.folder, loop.progress
    if progress.best is None:
        raise TrainingError(f"no validation gave a finite {loop.learner.task.best_metric}; {folder} has no best model")
    best = json.loads((folder / "best.json").read_text())
    several = {"multi_label": plan.data.train.multi_label, "thresholds": best.pop("thresholds", None)}
    task = Classify(load(folder), classes=plan.classes, **several).to(loop.device).eval()
    metrics = dict(best)
    if packs.test is not None:
        size = plan.config.batch_size * _EVALUATED_AT_ONCE
        batches = Batches(packs.test, batch_size=size, seed=0, shuffle=False, device=loop.device)
        results = measure(task, batches, prepare=preparation(plan)).results
        metrics |= {f"test_{name}": value for name, value in numbers(results).items()}
    told = [f"{name} {metrics[name]:.4f}" for name in (task.best_metric, f"test_{task.best_metric}") if name in metrics]
    loop.logs.say(f"best epoch {progress.best_epoch}: {', '.join(told)}; the model is in {folder}")
    return Run(folder=folder, plan=plan, packs=packs, task=task, metrics=metrics, history=tuple(progress.history))


@contextlib.contextmanager
def deterministic(config: TrainConfig) -> Iterator[None]:
    """Lets only kernels run that give the same bits each time, where the config asks for it."""
    if not config.deterministic:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the first product runs on a GPU
    torch.use_deterministic_algorithms(mode=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode=before)
