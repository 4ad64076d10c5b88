"""The parts of a run, made from its plan: decoded images, the task, its optimiser, and the loop around them."""

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.data.augment.augmentation import Augment
from vitrail.data.augment.mix import Mix
from vitrail.data.augment.paste import TILES, check_batch
from vitrail.data.broken import Skipped, Tally, left_out, lost_from_split
from vitrail.data.dataset import Batch, Dataset
from vitrail.data.feeds.choice import choose, make_feed, open_images
from vitrail.data.feeds.cold import Progress
from vitrail.data.feeds.feed import ImageSet
from vitrail.data.feeds.pack_size import stored_as, stored_parts
from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError, DataError
from vitrail.files import write_tensors
from vitrail.hardware import inference_batch_size
from vitrail.hardware import precision as choose_precision
from vitrail.layers.fp8 import use_fp8
from vitrail.layers.lora import add_lora, merge_lora
from vitrail.models.checkpoint import save
from vitrail.runs.evaluate import numbers
from vitrail.runs.record import Result
from vitrail.runs.trained import BESIDE, MODEL, beside_model
from vitrail.tasks.task import Task
from vitrail.training.background import begin_packing
from vitrail.training.config import TrainConfig, change, compiles
from vitrail.training.distributed import RankedStore, Shard, ShardedStore, World, spread, whole
from vitrail.training.eta import ways_to_shorten
from vitrail.training.linear_head import fit_head, groups_of, read_features
from vitrail.training.logs import Logs
from vitrail.training.loop import Loop
from vitrail.training.optim.ema import Average
from vitrail.training.optim.optimiser import build as build_optimiser
from vitrail.training.optim.schedule import Schedule
from vitrail.training.plan import Plan
from vitrail.training.state import Later, Learner
from vitrail.training.step import RecordedStep, Step, unrecordable
from vitrail.training.validate import validate

_EVALUATED = 4  # times the batch of a training step: no activations are kept


@dataclass(frozen=True, kw_only=True)
class Packs:
    """The images of a run, packed or streamed."""

    train: ImageSet
    val: ImageSet
    test: ImageSet | None

    @property
    def skipped(self) -> Skipped:
        """The names of all images that could not be read, and why."""
        return (*self.train.skipped, *self.val.skipped, *(() if self.test is None else self.test.skipped))


def open_split(
    plan: Plan, dataset: Dataset, *, learning: bool, tally: Tally | None = None, progress: Progress | None = None
) -> ImageSet:
    """All images of a split, at the size at which a run stores them.

    What validation was carved out of is stored as a whole, for any seed, at the size of the images to learn from. Its
    images are decoded once for both sizes.
    """
    fit = _stored(plan, dataset, learning=learning)
    whole = fit == _stored(plan, plan.data.train, learning=True)
    others = (plan.data.val, plan.data.test) if learning else ()
    beside = [(part, _stored(plan, part, learning=False)) for part in others if part is not None]
    beside = [(part, size) for part, size in beside if size != fit]
    return open_images(
        dataset, fit, feed=plan.config.feed, tally=tally, progress=progress, whole=whole, beside=beside
    )  # fmt: skip


def _stored(plan: Plan, dataset: Dataset, *, learning: bool) -> Preprocess:
    """How images are stored; those to learn from leave room for crops."""
    return stored_as(dataset, plan.preprocess, cropped=learning and _crops(plan))


def _crops(plan: Plan) -> bool:
    """Whether images to learn from are cropped at random."""
    return plan.config.augment.crops


def prepare_data(plan: Plan, world: World, logs: Logs, *, background: bool = False) -> tuple[Plan, Packs]:
    """Packs all images or prepares to stream them, and fits the batch to a set that is smaller than one.

    With `background`, one process alone may begin to train while they are being packed.
    """
    splits, parts = plan.data, stored_parts(plan.data, plan.preprocess, cropped=_crops(plan))
    chosen = world.collect(choose(parts, wanted=plan.config.feed))[0]  # free disk may differ from process to process
    plan = replace(plan, config=change(plan.config, {"feed": chosen.feed}))
    notes = [] if chosen.note is None else [chosen.note]
    tally = Tally(sum(len(part) for part in (splits.train, splits.val, splits.test) if part is not None))
    if not world.main:
        world.wait()  # the first process writes the cache, the others read it
    coming = _coming(plan, tally) if background and world.size == 1 and chosen.feed == "packed" else {}
    if coming:
        logs.say(f"{len(splits.train):,} training images are decoded and packed while the first epoch trains")
    with logs.reading("training images") as progress:
        train = coming.get(splits.train) or open_split(
            plan, splits.train, learning=True, tally=tally, progress=progress
        )  # fmt: skip
    with logs.reading("validation and test images") as progress:
        evaluated = partial(open_split, plan, learning=False, tally=tally, progress=progress)
        val, test = (
            part if part is None else coming.get(part) or evaluated(part) for part in (splits.val, splits.test)
        )
    assert val is not None  # noqa: S101  (every run has validation images)
    packs = Packs(train=train, val=val, test=test)
    if world.main:
        world.wait()
    if packs.skipped:
        notes += [left_out(packs.skipped), *_without(plan, packs)]
    config, together = plan.config, TILES if plan.config.augment.mosaic else 2
    unit = together * world.size * config.accumulate if world.size > 1 else config.accumulate
    if config.batch_size > len(train):
        size = max(len(train) // unit * unit, unit)
        notes.append(
            f"there are only {len(train)} training images: batch_size is {size} instead of {config.batch_size}"
        )
        config = change(config, {"batch_size": size})
    if config.batch_size % config.accumulate:
        raise ConfigError(f"batch_size {config.batch_size} is not divisible by accumulate {config.accumulate}")
    if config.augment.mosaic:
        check_batch(config.batch_size // config.accumulate, world.size)
    fresh = [note for note in notes if note not in plan.notes]  # those of a resumed run were shown before
    for note in fresh:
        logs.say(note)
    return replace(plan, config=config, notes=(*plan.notes, *fresh)), packs


def _coming(plan: Plan, tally: Tally) -> dict[Dataset, ImageSet]:
    """The splits that are packed in the background from now on."""

    def learning(split: Dataset) -> bool:
        return split is plan.data.train

    return begin_packing(
        plan,
        tally,
        stored=lambda split: _stored(plan, split, learning=learning(split)),
        opened=lambda split: open_split(plan, split, learning=learning(split), tally=tally),
    )


def _without(plan: Plan, packs: Packs) -> Iterator[str]:
    """What is said of targets that broken images have left without one; DataError where these cannot be learned."""
    pairs = {
        "train": (plan.data.train, packs.train),
        "val": (plan.data.val, packs.val),
        "test": (plan.data.test, packs.test),
    }
    for split, (part, packed) in pairs.items():
        if part is None or packed is None:
            continue
        for name, target in plan.schema.items():
            if names := target.lost(part.targets[name], packed.targets[name]):
                if split == "train":
                    raise DataError(lost_from_split(split, names))
                yield lost_from_split(split, names)


def assemble(
    plan: Plan, packs: Packs, folder: Path, *, world: World, device: torch.device, shard: Shard, logs: Logs,
    blank: bool = False,
) -> Loop:  # fmt: skip
    """Fresh objects for a run from its first step on; `blank`: a checkpoint is about to fill them."""
    config = plan.config
    precision, note = choose_precision(config.precision, device)
    if note is not None:
        logs.say(note)
    task = _built(plan, packs, device, logs, blank=blank)
    loss = spread(task, world, shard=shard, device=device, precision=precision, compiled=config.compile)
    learner = Learner(
        task=task,
        optimiser=build_optimiser(task, config.optimiser, device),
        scaler=torch.amp.GradScaler(device.type, enabled=precision == "fp16"),
        ema=None if config.ema is None else Average(task, config.ema),
    )
    reason = unrecordable(task, device, world, config.accumulate, precision)
    step = _kind_of_step(config, reason, logs)(
        learner=learner,
        loss=loss,
        treat=Treatment(plan, packs.train, device),
        device=device,
        seed=config.seed,
        clip=config.optimiser.clip,
        precision=precision,
        world=world,
    )
    rows = {"seed": config.seed, "device": device, "rank": world.rank, "world": world.size}
    part = config.batch_size // config.accumulate
    feed = make_feed(packs.train, batch_size=part, shuffle=True, drop_last=True, balance=config.balance, **rows)
    val = make_feed(packs.val, batch_size=validation_batch_size(plan, device), shuffle=False, **rows)
    store = ShardedStore if shard == "fsdp" and world.size > 1 else RankedStore
    logs.images, logs.compiled, logs.printed = config.batch_size, compiles(config.compile), task.printed
    logs.advise = partial(ways_to_shorten, plan, device)
    return Loop(
        config=config,
        step=step,
        feed=feed,
        evaluate=partial(
            validate, task, val, packs.val.prepare(plan.preprocess), device=device, precision=precision, world=world
        ),
        publish=partial(publish, plan, task, folder, world),
        schedule=Schedule.of(config.schedule, epochs=config.epochs, steps=len(feed) // config.accumulate),
        store=store(folder / "checkpoints", keep=config.keep, world=world),
        identity=Later(partial(plan.identity, packs.train)),
        folder=folder,
        logs=logs,
    )


def validation_batch_size(plan: Plan, device: torch.device) -> int:
    """How many images a batch of validation has."""
    most = plan.config.batch_size * _EVALUATED
    return inference_batch_size(device, plan.preprocess.image_size, most=most)


def _kind_of_step(config: TrainConfig, unrecordable: str | None, logs: Logs) -> Callable[..., Step]:
    """How steps are made: recorded as one CUDA graph where the config asks for it and nothing prevents it."""
    if unrecordable is None and (compiles(config.compile) or config.compile == "cudagraphs"):
        return partial(RecordedStep, fuse=compiles(config.compile))
    if config.compile == "cudagraphs":
        logs.say(f"compile=cudagraphs is not used: {unrecordable}")
    return Step


def _built(plan: Plan, packs: Packs, device: torch.device, logs: Logs, *, blank: bool) -> Task:
    """The task of a plan on a device, its head fitted to the training images where the recipe says so."""
    task = plan.build_task(blank=blank).to(device)
    if plan.config.fit_head and not blank:
        prepare = packs.train.prepare(plan.preprocess)
        with logs.ledger.phase("read features"):
            known = read_features(task.backbone, packs.train, prepare, device=device)
        with logs.ledger.phase("fit the head"):
            fit_head(task, known, groups=groups_of(plan.data.train, packs.train))
    if plan.config.precision == "fp8":
        use_fp8(task.backbone)
    return task


class Treatment:
    """Augments and mixes the batch of an epoch as a plan says."""

    def __init__(self, plan: Plan, images: ImageSet, device: torch.device) -> None:
        config = plan.config
        self.augment = Augment(
            config.augment, plan.preprocess, seed=config.seed, schema=plan.schema, aspects=images.aspects(device),
            epochs=config.epochs,
        )  # fmt: skip
        mixes = config.mix.mixup or config.mix.cutmix or config.mix.patch_mixup
        self.mix = Mix(config.mix, schema=plan.schema, seed=config.seed) if mixes else None

    def __call__(self, batch: Batch, epoch: int | Tensor) -> Batch:
        """uint8 images -> float images; targets move with the pixels and are mixed with the images."""
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
        {name.removeprefix(MODEL): state[name] for name in state if name.startswith(MODEL)}, assign=True
    )
    model.labels, model.preprocess = task.backbone.labels, plan.preprocess
    save(merge_lora(model), folder)
    if rest := {name: state[name] for name in beside_model(task)}:
        write_tensors(folder / BESIDE, rest, {})
    before = task.state()
    task.adopt(results)
    Result(metrics=numbers(results), state=task.state()).write(folder)
    task.load_state(before)  # training continues as before


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
        if not compiles(config.compile):
            yield
            return
        # Else the compiler chooses between kernels by timing them, and the order of a sum with them.
        inductor = importlib.import_module("torch._inductor.config")  # seconds, if at all
        with inductor.patch(deterministic=True):
            yield
    finally:
        torch.use_deterministic_algorithms(mode=before)
