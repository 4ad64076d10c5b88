"""The parts of a run, made from its plan: decoded images, the task, its optimiser, and the loop around them."""

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.data.augment import Augment, Prepare
from vitrail.data.batches import Batches
from vitrail.data.cache import Packed
from vitrail.data.dataset import Batch
from vitrail.data.mix import Mix
from vitrail.errors import ConfigError
from vitrail.hardware import precision as choose_precision
from vitrail.layers.lora import add_lora, merge_lora
from vitrail.models.checkpoint import save
from vitrail.models.checkpoint.files import write_json, write_tensors
from vitrail.tasks.task import Task
from vitrail.training.config import TrainConfig, change
from vitrail.training.distributed import RankedStore, Shard, ShardedStore, World, spread, whole
from vitrail.training.ema import Average
from vitrail.training.logs import Logs
from vitrail.training.loop import Loop
from vitrail.training.normalisation import of_config
from vitrail.training.optimiser import build as build_optimiser
from vitrail.training.pace import sooner
from vitrail.training.plan import Plan
from vitrail.training.schedule import Schedule
from vitrail.training.state import Learner
from vitrail.training.step import RecordedStep, Step, recordable
from vitrail.training.validate import numbers, validate

BESIDE = "task.safetensors"  # the file of what a task learned that is no part of its model
EVALUATED_AT_ONCE = 4  # times the batch of a training step: no activations are kept
_MODEL = "backbone."  # the tensors of the model


@dataclass(frozen=True, kw_only=True)
class Packs:
    """The images of a run, decoded."""

    train: Packed
    val: Packed
    test: Packed | None


def prepare_data(plan: Plan, world: World, logs: Logs) -> tuple[Plan, Packs]:
    """Decodes all images once, and fits the batch to a set that is smaller than one."""
    notes, splits = [], plan.data
    if not world.main:
        world.wait()  # the first process writes the cache, the others read it
    with logs.reading("training images") as progress:
        train = plan.pack(splits.train, learning=True, progress=progress)
    with logs.reading("images to judge by") as progress:
        val = plan.pack(splits.val, learning=False, progress=progress)
        test = None if splits.test is None else plan.pack(splits.test, learning=False, progress=progress)
    if world.main:
        world.wait()
    if skipped := [*train.skipped, *val.skipped]:
        many = f"{len(skipped)} broken images were left out, such as" if len(skipped) > 1 else "left out as broken:"
        notes.append(f"{many} {skipped[0][1]}")
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
    fresh = [note for note in notes if note not in plan.notes]  # a resumed run has told them before
    for note in fresh:
        logs.say(note)
    plan = Plan(**{**vars(plan), "config": config, "notes": (*plan.notes, *fresh)})
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
    learner = Learner(
        task=task,
        optimiser=build_optimiser(task, config.optimiser, device),
        scaler=torch.amp.GradScaler(device.type, enabled=precision == "fp16"),
        ema=None if config.ema is None else Average(task, config.ema),
    )
    recorded = config.compile and recordable(device, world, parts=config.accumulate, precision=precision)
    step = (RecordedStep if recorded else Step)(
        learner=learner,
        loss=loss,
        treat=Treatment(plan),
        device=device,
        seed=config.seed,
        clip=config.optimiser.clip,
        precision=precision,
        world=world,
    )
    rows = {"seed": config.seed, "device": device, "rank": world.rank, "world": world.size}
    part, at_once = config.batch_size // config.accumulate, config.batch_size * EVALUATED_AT_ONCE
    feed = Batches(packs.train, batch_size=part, shuffle=True, drop_last=True, **rows)  # type: ignore[arg-type]
    val = Batches(packs.val, batch_size=at_once, shuffle=False, **rows)  # type: ignore[arg-type]
    store = ShardedStore if shard == "fsdp" and world.size > 1 else RankedStore
    logs.images, logs.compiled, logs.advise = config.batch_size, config.compile, partial(sooner, plan, device)
    return Loop(
        config=config,
        step=step,
        feed=feed,
        evaluate=partial(validate, task, val, preparation(plan), device=device, precision=precision, world=world),
        publish=partial(publish, plan, task, folder, world),
        schedule=Schedule.of(config.schedule, epochs=config.epochs, steps=len(feed) // config.accumulate),
        store=store(folder / "checkpoints", keep=config.keep, world=world),
        identity=plan.identity(packs.train),
        folder=folder,
        logs=logs,
    )


class Treatment:
    """Augments and mixes the batch of an epoch as a plan says."""

    def __init__(self, plan: Plan) -> None:
        config, model = plan.config, plan.backbone_config
        size = {"image_size": model.image_size, "channels": model.channels}
        self.augment = Augment(config.augment, **size, seed=config.seed)  # type: ignore[arg-type]
        mixes = config.mix.mixup or config.mix.cutmix or config.mix.patch_mixup
        self.mix = Mix(config.mix, num_classes=len(plan.classes), seed=config.seed) if mixes else None

    def __call__(self, batch: Batch, epoch: int | Tensor) -> Batch:
        """uint8 images -> float images, and soft labels where images are mixed."""
        batch = self.augment(batch, epoch)
        return batch if self.mix is None else self.mix(batch, epoch)


def publish(plan: Plan, task: Task, folder: Path, world: World, results: Mapping[str, Any]) -> None:
    """Writes the model as it stands to the run's folder, as a plain checkpoint that `vitrail.load` takes."""
    state = whole(task)
    if not world.main:
        return
    with torch.device("meta"):
        model = plan.bare(blank=True)
        if plan.config.lora is not None:
            add_lora(model, plan.config.lora)
    model.load_state_dict(
        {name.removeprefix(_MODEL): state[name] for name in state if name.startswith(_MODEL)}, assign=True
    )
    model.normalisation = of_config(plan.config.augment)
    save(merge_lora(model), folder)
    if rest := {name: state[name] for name in beside_model(task)}:
        write_tensors(folder / BESIDE, rest, {})
    best: dict[str, Any] = {**numbers(results)}
    if "thresholds" in results:
        best["thresholds"] = results["thresholds"].tolist()
    write_json(folder / "best.json", best)


def beside_model(task: Task) -> list[str]:
    """The names of what a task learns that is no part of its model, such as a decoder."""
    return [name for name, _ in task.named_parameters() if not name.startswith(_MODEL)]


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
        if not config.compile:
            yield
            return
        # Else the compiler chooses between kernels by timing them, and the order of a sum with them.
        inductor = importlib.import_module("torch._inductor.config")  # seconds, if at all
        with inductor.patch(deterministic=True):
            yield
    finally:
        torch.use_deterministic_algorithms(mode=before)
