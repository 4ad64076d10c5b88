"""A run of every registered task, small enough for a test: what is added to the library arrives here by itself."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch

from support.task_data import MAKERS, SEVERAL, UNLABELLED
from vitrail.errors import Unsupported
from vitrail.runs.trained import TrainedModel, open_model
from vitrail.tasks.task import Task, TaskConfig
from vitrail.training.config import TrainConfig  # noqa: F401  (registers all tasks)
from vitrail.training.run import Run, train

TINY = {
    "model": "vit32_small", "image_size": 32, "batch_size": 16, "device": "cpu",
    "options": {"dim": 32, "depth": 2, "num_heads": 2, "dropout": 0.0}, "schedule": {"warmup_epochs": 0.5},
    "optimiser": {"lr": 3e-3}, "val": 0.25,
}  # fmt: skip
PLAN = {name: value for name, value in TINY.items() if name not in ("device", "val", "model")}
# Options of tasks whose defaults are too large for a test.
_HEAD = {"kind": "deformable_detr", "dim": 32, "num_heads": 2, "hidden": 48, "encoder_depth": 1, "decoder_depth": 1}
OPTIONS: dict[str, dict[str, Any]] = {
    "detect": {"head": _HEAD | {"queries": 10, "levels": 2, "denoising": 8}, "most": 10},
    "segment": {"head": {"kind": "segformer", "dim": 16}},
    "depth": {"head": {"kind": "dpt", "dim": 8, "widths": [8, 8, 8, 8]}},
}
OPTIONS["many"] = {"tasks": {"classify": {"label_smoothing": 0.1}, **OPTIONS}}
CASES = [
    (kind, target)
    for kind, config in TaskConfig.kinds.items()
    for target in ((SEVERAL,) if kind == "many" else config.target_kinds or (UNLABELLED,))
]

_MADE: dict[tuple[str, str], "Case"] = {}


def base_of(kind: str) -> str | None:
    """The task that a kind is the same as, but for its teacher."""
    return next((name for name, config in TaskConfig.kinds.items() if config.student == kind), None)


@dataclass(frozen=True)
class Case:
    """A task, data for it, and its run of two epochs."""

    kind: str
    target: str
    data: Path
    run: Run
    teacher: Path | None

    @cached_property
    def opened(self) -> TrainedModel:
        return open_model(self.run.folder)

    @property
    def task(self) -> Task:
        return self.opened.task

    @cached_property
    def outputs(self) -> dict[str, torch.Tensor]:
        return self.opened.outputs(self.images)

    @cached_property
    def images(self) -> torch.Tensor:
        draw, like = torch.Generator().manual_seed(0), self.opened.preprocess
        return torch.randint(0, 256, (6, like.channels, *like.image_size), generator=draw, dtype=torch.uint8)

    @cached_property
    def files(self) -> list[Path]:
        folder = self.data if self.data.is_dir() else self.data.parent
        images = folder / "images"  # beside masks and depth maps
        return sorted((images if images.is_dir() else folder).rglob("*.png"))[:4]

    @cached_property
    def answers(self) -> bool:
        """Whether the task gives answers."""
        try:
            self.task.decode(self.outputs)
        except Unsupported:
            return False
        return True

    def needs_answers(self) -> None:
        if not self.answers:
            pytest.skip(f"task {self.kind!r} gives no answers")


def task_of(kind: str) -> dict[str, Any]:
    """A task, small enough for a test."""
    return {"kind": kind, **OPTIONS.get(kind, {})}


def settings(kind: str) -> list[str]:
    """The same options, as words of a command line."""
    return [f"task.{path}={value}" for path, value in _paths(OPTIONS.get(kind, {})) if not path.endswith("kind")]


def _paths(options: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in options.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{path}", inner) for path, inner in _paths(value))
        else:
            yield name, value


def make_case(kind: str, target: str, folders: pytest.TempPathFactory) -> Case:
    """Data on disk and a run of two epochs: one for all tests of a process."""
    if (kind, target) not in _MADE:
        _MADE[kind, target] = _new_case(kind, target, folders.mktemp("task"))
    return _MADE[kind, target]


def _new_case(kind: str, target: str, folder: Path) -> Case:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITRAIL_CACHE", str(folder / "cache"))
        data = MAKERS[target](folder)
        teacher = None
        if (base := base_of(kind)) is not None:
            teacher = train(data, task=base, folder=folder / "teacher", epochs=1, silent=True, **TINY).folder
        run = train(data, task=task_of(kind), teacher=teacher, folder=folder / "run", epochs=2, silent=True, **TINY)
    return Case(kind, target, data, run, teacher)
