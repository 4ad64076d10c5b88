"""The image size of a linear head where nothing was named: folds of the training images choose."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, stdev

import torch

from vitrail.models.checkpoint.vitrail import describe_model
from vitrail.training.assemble import prepare_data
from vitrail.training.config import change
from vitrail.training.distributed import World
from vitrail.training.linear_head import LEAST_FOR_FOLDS, fit_head, groups_of, read_features
from vitrail.training.logs import Logs
from vitrail.training.plan import Plan


def choose_size(plan: Plan, *, world: World, device: torch.device, logs: Logs) -> Plan:
    """The plan at its own size, or at one of the others if folds of the training images have less loss there.

    It has to be less by more than a standard error of the difference: an answer takes longer at a larger size. The
    features of all sizes stay in the cache, so that the run that follows reads none again. Validation and test images
    have no part in it.
    """
    sizes = size_choices(plan)
    if not sizes or world.size > 1:
        return plan
    best, losses = sizes[0], dict[int, tuple[float, ...]]()
    for size in sizes:
        one, packs = prepare_data(resized(plan, size), world, logs)
        task = one.build_task().to(device)
        known = read_features(task.backbone, packs.train, packs.train.prepare(one.preprocess), device=device)
        losses[size] = fit_head(task, known, groups=groups_of(one.data.train, packs.train)).losses
        best = size if clearly_less(losses[size], losses[best]) else best
    said = ", ".join(f"{fmean(loss):.3f} at {size} px" for size, loss in losses.items())
    note = f"folds of the training images chose {best} x {best} pixels (loss {said})"
    chosen = resized(plan, best)
    return replace(chosen, notes=(*chosen.notes, note))


def clearly_less(losses: Sequence[float], others: Sequence[float]) -> bool:
    """Whether losses are less than those of the same folds elsewhere, by more than a standard error of the mean."""
    gains = [other - loss for loss, other in zip(losses, others, strict=True)]
    return fmean(gains) > stdev(gains) / len(gains) ** 0.5


def size_choices(plan: Plan) -> tuple[int, ...]:
    """The image sizes to choose from, that of the plan first; none where it is fixed, or there are too few images."""
    enough = len(plan.data.train) >= LEAST_FOR_FOLDS
    return (plan.preprocess.image_size[0], *plan.sizes) if plan.sizes and enough else ()


def resized(plan: Plan, size: int) -> Plan:
    """A plan for images of another size, whose notes speak of that."""
    old, new = "{} x {}".format(*plan.preprocess.image_size), f"{size} x {size}"
    backbone = plan.bare().resize(size)
    model = {name: value for name, value in describe_model(backbone).items() if name in ("family", "config")}
    return replace(
        plan,
        config=change(plan.config, {"image_size": (size, size)}),
        preprocess=replace(plan.preprocess, image_size=(size, size)),
        model=model,
        weights=backbone,
        notes=tuple(note.replace(old, new) for note in plan.notes),
        sizes=(),
    )
