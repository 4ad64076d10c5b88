"""A check that a run which is stopped anywhere and resumed ends with the same bits."""

import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.hardware import device as choose_device
from vitrail.hardware import own_stream
from vitrail.report import Facts, Report, Section, Table, Text, Unit, Value
from vitrail.training.assemble import assemble, deterministic, prepare_data
from vitrail.training.config import change
from vitrail.training.distributed import World
from vitrail.training.logs import Logs
from vitrail.training.loop import Loop
from vitrail.training.plan import Source, Teacher, make_plan
from vitrail.training.task_choice import TaskChoice


def verify_resume(
    data: Source, *, steps: int, model: str | None = None, recipe: str | Path | Mapping[str, Any] | None = None,
    start: str | Path | None = None, teacher: Teacher | None = None, val: str | Path | float | None = None,
    task: TaskChoice | None = None, label: str | Sequence[str] | None = None, device: str | torch.device | None = None,
    group: str | None = None, at: int | None = None, **changes: Any,
) -> Report:  # fmt: skip
    """Trains some steps at one go, and again with a stop at step `at` (drawn by default); compares every tensor.

    The second run is saved, thrown away, and resumed by fresh objects from its checkpoint, as after a kill. Nothing is
    left behind. On a GPU only kernels that give the same bits each time are used.
    """
    if steps < 2:
        raise ConfigError(f"steps is {steps}; a run that is to be stopped on the way needs 2 or more")
    at = random.SystemRandom().randint(1, steps - 1) if at is None else at
    if not 0 < at < steps:
        raise ConfigError(f"at is {at}; the stop must come after step 1 or later, and before step {steps}")
    where, world = choose_device(device), World()
    plan = make_plan(
        data, model=model, task=task, label=label, recipe=recipe, start=start, teacher=teacher, val=val, group=group,
        device=where, changes=changes,
    )  # fmt: skip
    plan = replace(plan, config=change(plan.config, {"deterministic": True}))
    with tempfile.TemporaryDirectory() as temporary, deterministic(plan.config), own_stream(where):
        folder = Path(temporary)
        plan, packs = prepare_data(plan, world, Logs(folder, silent=True))

        def fresh(name: str, *, blank: bool = False) -> Loop:
            made = folder / name
            made.mkdir(exist_ok=True)
            logs = Logs(made, silent=True)
            return assemble(plan, packs, made, world=world, device=where, shard="ddp", logs=logs, blank=blank)

        through = fresh("through")
        through.run(until=steps)
        stopped = fresh("stopped")
        stopped.run(until=at)
        stopped.save()
        del stopped
        resumed = fresh("stopped", blank=True)
        resumed.resume()
        resumed.run(until=steps)
        return compare(through.learner.tensors(), resumed.learner.tensors(), steps=through.progress.step, at=at)


def compare(first: Mapping[str, Tensor], second: Mapping[str, Tensor], *, steps: int, at: int) -> Report:
    """A report on whether two runs have the same tensors, bit by bit."""
    rows: list[dict[str, Value]] = []
    for name in sorted(first.keys() | second.keys()):
        one, other = first.get(name), second.get(name)
        if one is None or other is None or one.shape != other.shape:
            rows.append({"tensor": name, "numbers that differ": None, "largest difference": None})
        elif not same_bits(one, other):
            gap = (one.double() - other.double()).abs()
            rows.append({
                "tensor": name, "numbers that differ": int((gap != 0).sum()), "largest difference": gap.max().item()
            })  # fmt: skip
    numbers = sum(tensor.numel() for tensor in first.values())
    facts = {"equal": not rows, "steps": steps, "stopped after step": at, "tensors": len(first), "numbers": numbers}
    verdict = "Resuming is exact: every bit is the same." if not rows else "Resuming is not exact."
    report: list[Section] = [Facts("Resume", facts), Text("Verdict", verdict)]
    if rows:
        columns: dict[str, Unit] = {"tensor": "", "numbers that differ": "", "largest difference": ""}
        return Report("Resume, bit by bit", (*report, Table("Differences", columns, rows)))
    return Report("Resume, bit by bit", tuple(report))


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors have the same type, shape and bits; NaN equals NaN, and 0 is not -0."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    one, other = (tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for tensor in (first, second))
    return torch.equal(one, other)
