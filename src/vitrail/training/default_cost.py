"""What a run with nothing named costs on this machine where it starts from packaged weights, for the audit of data."""

import tempfile
import warnings
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from vitrail.data.audit.doctor import Cost
from vitrail.data.dataset import Batch, Splits, Subset
from vitrail.data.feeds.choice import make_feed
from vitrail.data.feeds.dense import dense_fields, fitted
from vitrail.data.feeds.pack_size import stored_as
from vitrail.data.feeds.packing import pack
from vitrail.data.split import check
from vitrail.errors import BrokenImage, DataError, Notice, VitrailError
from vitrail.hardware import autocast, precision
from vitrail.tasks.task import Task
from vitrail.training.assemble import Packs, Treatment
from vitrail.training.cost import ADAM, TrainingCost, device_memory
from vitrail.training.plan import Plan, make_plan
from vitrail.training.tuning.pilot import seconds_per_image

_LOOKED_AT = 8  # images that time and memory are measured on
_KEPT = 2  # of them, for the memory of an image


def default_cost(splits: Splits, *, seed: int = 0, device: torch.device) -> TrainingCost | None:
    """The measured cost of a run on data; None where it trains a new model, or is refused (the audit says why)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)
            plan = make_plan(check(splits), device=device, changes={"seed": seed})
    except VitrailError:
        return None
    if plan.start is None:
        return None
    try:
        seconds, kept = _measured(plan, device)
    except (VitrailError, RuntimeError):  # no image can be read, or memory does not suffice
        return _cost(plan)
    return _cost(plan, seconds, kept)


def _measured(plan: Plan, device: torch.device) -> tuple[float, int]:
    """Seconds of training on an image, at all sizes that are tried, and the bytes that autograd keeps of one."""
    train, config = plan.data.train, plan.config
    chosen = range(0, len(train), max(len(train) // _LOOKED_AT, 1))[:_LOOKED_AT]
    readable = [index for index in chosen if _readable(plan, index)]
    if not readable:
        raise DataError(f"none of the images of {train.name} that were tried can be read; see `vitrail doctor`")
    some = Subset(train, readable)
    with tempfile.TemporaryDirectory() as folder:
        fit = stored_as(some, plan.preprocess, cropped=config.augment.crops and config.probe is None)
        images = pack(some, fit, folder=Path(folder))
        packs = Packs(train=images, val=images, test=None)
        seconds = seconds_per_image(plan, packs, device)
        kept = 0 if config.probe is not None else _activations(plan, packs, device)
        del images, packs  # mapped from the folder
    size = plan.preprocess.image_size
    # Features are computed at each size.
    return seconds * (1 + sum(other**2 / (size[0] * size[1]) for other in plan.sizes)), kept


def _readable(plan: Plan, index: int) -> bool:
    """Whether a training image can be used; the audit lists those that cannot."""
    train = plan.data.train
    try:
        size = train.read(index).shape[1:]
        for name, target in dense_fields(train.schema).items():
            fitted(target, train.targets[name][index], (size[0], size[1]), plan.preprocess, image=train.where(index))
    except BrokenImage:
        return False
    return True


def _cost(plan: Plan, seconds: float | None = None, kept: int | None = None) -> TrainingCost:
    """The cost with what was measured, if it was."""
    config = plan.config
    task = plan.build_task(blank=True)
    numbers = Cost(
        model=_named(plan),
        fixed=_fixed(task, averaged=config.ema is not None),
        per_image=kept,
        memory=device_memory(),
        images_per_second=None if seconds is None else 1 / seconds,
        batch_size=config.batch_size,
        epochs=0 if config.probe is not None else config.epochs,
    )
    return TrainingCost(numbers, plan.preprocess.image_size)


def _named(plan: Plan) -> str:
    """Such as "packaged-photos with a rt_detr head, 256 x 320"."""
    height, width = plan.preprocess.image_size
    head = "linear" if plan.config.probe is not None else getattr(getattr(plan.task, "head", None), "kind", None)
    others = "".join(f" and {other} x {other}" for other in plan.sizes)
    return f"{plan.start}{'' if head is None else f' with a {head} head'}, {height} x {width}{others}"


def _fixed(task: Task, *, averaged: bool) -> int:
    """Bytes of the weights, of gradients and moments of those that learn, and of the moving average."""
    total = learning = 0
    for parameter in task.parameters():
        size = parameter.numel() * parameter.element_size()
        total, learning = total + size, learning + size * parameter.requires_grad
    return total * (1 + averaged) + learning * (ADAM - 1)


def _activations(plan: Plan, packs: Packs, device: torch.device) -> int:
    """The bytes of an image that autograd keeps of the loss; memory that is shared counts once, weights do not."""
    task = plan.build_task(blank=True).to(device).train()
    feed = make_feed(packs.train, batch_size=min(_KEPT, len(packs.train)), seed=0, shuffle=False, device=device)
    batch: Batch = Treatment(plan, packs.train, device)(next(iter(feed.epoch(0))), 0)
    known = {one.untyped_storage().data_ptr() for one in (*task.parameters(), *task.buffers())}
    sizes: dict[int, int] = {}
    held = []  # so that no address is used twice

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            sizes[storage.data_ptr()] = storage.nbytes()
            held.append(tensor)
        return tensor

    with autocast(device, precision(plan.config.precision, device)[0]), saved_tensors_hooks(keep, lambda one: one):
        task.loss(batch)
    return sum(sizes.values()) // len(batch.images)
