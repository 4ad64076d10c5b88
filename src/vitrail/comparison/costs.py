"""What each run costs: parameters, MACs and file size of its model, time of training, and time of an answer here."""

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch

from vitrail.comparison.opened import ComparedRun
from vitrail.errors import VitrailError
from vitrail.profiling import cost
from vitrail.runs.record import FILES
from vitrail.timing import interleaved, synchronised

_WEIGHTS = ".safetensors"
_ROUNDS = 9


class RunCost(NamedTuple):
    """None stands for what is not known."""

    parameters: int
    macs: int | None  # of the backbone, for one image
    size: int  # bytes of the weights on disk
    step: float | None  # seconds of a training step, the median over epochs, where the run was made
    training: float | None  # seconds of all epochs, where the run was made
    answer: float  # seconds of a forward pass of one image, measured now


def costs(runs: Sequence[ComparedRun], *, rounds: int = _ROUNDS) -> list[RunCost]:
    """Of each run; the time of an answer is measured in turns."""
    passes = {str(index): _forward(run) for index, run in enumerate(runs)}
    taken = interleaved(passes, rounds=rounds)
    return [_cost(run, median(taken[str(index)])) for index, run in enumerate(runs)]


def _forward(run: ComparedRun) -> Any:
    """A pass of one grey image, as the model takes it."""
    like = run.model.preprocess
    image = torch.full((1, like.channels, *like.image_size), 128, dtype=torch.uint8, device=run.model.device)
    return synchronised(partial(run.model.outputs, image), run.model.device)


def _cost(run: ComparedRun, answer: float) -> RunCost:
    model = run.model
    files = [run.folder / name for name in FILES if name.endswith(_WEIGHTS)]
    seconds = [float(row["seconds"]) for row in run.history if row.get("seconds") is not None]
    try:
        macs = cost(model.backbone).macs
    except (VitrailError, RuntimeError, NotImplementedError):  # models of several parts cannot be counted on shapes
        macs = None
    return RunCost(
        parameters=sum(parameter.numel() for parameter in model.task.parameters()),
        macs=macs,
        size=sum(file.stat().st_size for file in files if file.is_file()),
        step=step_seconds(run.record.recipe, run.history),
        training=sum(seconds) if seconds else None,
        answer=answer,
    )


def step_seconds(recipe: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> float | None:
    """The time of a step of the optimiser, the median over epochs; None for a head that was fitted at once."""
    speeds = [row["images_per_second"] for row in history if row.get("images_per_second") and row.get("step")]
    size = recipe.get("batch_size")
    return size / median(speeds) if speeds and isinstance(size, int) else None
