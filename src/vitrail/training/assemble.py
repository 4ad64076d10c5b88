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
from vitrail.data.broken import Skipped, Tally, left_out, lost, lost_from_split
from vitrail.data.cache import Packed, Progress, pack
from vitrail.data.dataset import Batch, Dataset
from vitrail.data.mix import Mix
from vitrail.data.split import counts
from vitrail.data.stored import stored_size
from vitrail.errors import ConfigError, DataError
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

    @property
    def skipped(self) -> Skipped:
        """The names of all images that could not be read, and why."""
        return (*self.train.skipped, *self.val.skipped, *(() if self.test is None else self.test.skipped))


def pack_split(
    plan: Plan, dataset: Dataset, *, learning: bool, tally: Tally | None = None, progress: Progress | None = None
) -> Packed:
    """All images of a split, at the size at which a run stores them.

    What validation was carved out of is stored as a whole, for any seed, at the size of the images to learn from.
    """
    size, of_whole = _size(plan, dataset, learning=learning), _size(plan, plan.data.train, learning=True)
    channels = plan.backbone_config.channels
    return pack(dataset, size=size, channels=channels, tally=tally, progress=progress, whole=size == of_whole)


def _size(plan: Plan, dataset: Dataset, *, learning: bool) -> tuple[int, int]:
    """The size of stored images; those to learn from leave room for crops."""
    cropped = learning and plan.config.augment.crop == "resized"
    return stored_size(dataset, plan.backbone_config.image_size, cropped=cropped)


def prepare_data(plan: Plan, world: World, logs: Logs) -> tuple[Plan, Packs]:
    """Decodes all images once, and fits the batch to a set that is smaller than one."""
    notes, splits = [], plan.data
    tally = Tally(sum(len(part) for part in (splits.train, splits.val, splits.test) if part is not None))
    if not world.main:
        world.wait()  # the first process writes the cache, the others read it
    with logs.reading("training images") as progress:
        train = pack_split(plan, splits.train, learning=True, tally=tally, progress=progress)
    with logs.reading("images to judge by") as progress:
        judged = partial(pack_split, plan, learning=False, tally=tally, progress=progress)
        val, test = judged(splits.val), None if splits.test is None else judged(splits.test)
    packs = Packs(train=train, val=val, test=test)
    if world.main:
        world.wait()
    if packs.skipped:
        notes += [left_out(packs.skipped), *_without(plan, packs)]
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
    return plan, packs


def _without(plan: Plan, packs: Packs) -> Iterator[str]:
    """What is said of a class that broken images have left without one; DataError where it cannot be learned."""
    pairs = {
        "train": (plan.data.train, packs.train),
        "val": (plan.data.val, packs.val),
        "test": (plan.data.test, packs.test),
    }
    for split, (part, packed) in pairs.items():
        if part is None or packed is None or not plan.classes:
            continue
        if names := lost(part.classes, counts(part), counts(packed)):
            if split == "train":
                raise DataError(lost_from_split(split, names))
            yield lost_from_split(split, names)


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
