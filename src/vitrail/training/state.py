"""What a run must remember, and the checkpoints that hold it: whole or not there, checked, rotating.

A checkpoint is one safetensors file: all tensors (model, average, optimiser) and, in its header, a checksum and the
counters. Random numbers need no place in it: those of a step come from (seed, step), those of the data from
(seed, epoch, sample), so a resumed run draws what the uninterrupted one would have drawn.
"""

import contextlib
import json
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.config import from_dict, to_dict
from vitrail.data.preprocess import Preprocess
from vitrail.errors import CheckpointError, ConfigError, Notice, TrainingError
from vitrail.files import digest, write_tensors
from vitrail.models.checkpoint.files import read
from vitrail.models.registry import FAMILIES
from vitrail.strict_json import from_json, to_json
from vitrail.tasks.task import Task
from vitrail.training.config import FREE, TrainConfig
from vitrail.training.optim.ema import Average

_NAME = re.compile(r"step-(\d{9})(\.safetensors)?")
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # what AdamW keeps of each parameter
_OF_MATRICES = ("step", "momentum")  # what Muon keeps of its matrices; it counts no steps, but AdamW asks for them


@dataclass
class Progress:
    """Where a run stands."""

    epoch: int = 0  # epochs that are over
    done: int = 0  # optimiser steps of the present epoch
    step: int = 0  # optimiser steps in all
    best: float | None = None  # of the validation metric
    best_epoch: int | None = None
    best_step: int | None = None
    stopped: bool = False  # early, since nothing got better
    sums: dict[str, float] = field(default_factory=dict)  # of the present epoch's losses
    history: list[dict[str, Any]] = field(default_factory=list)  # one entry an epoch


@dataclass
class Learner:
    """The parts of a run that change as it learns."""

    task: Task
    optimiser: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    ema: Average | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that must survive, by name; they share the parts' memory."""
        found = {f"model.{name}": tensor for name, tensor in self.task.state_dict().items()}
        if self.ema is not None:
            found |= {f"ema.{name}": tensor for name, tensor in self.ema.values.items()}
        for name, parameter, keys in self._learned():
            moments = self.optimiser.state.get(parameter, {})
            for key in keys:
                blank = torch.zeros(()) if key == "step" else torch.zeros_like(parameter.detach())
                found[f"optimiser.{name}.{key}"] = moments.get(key, blank)
        return found

    def counters(self) -> dict[str, Any]:
        """Every number beside the tensors."""
        return {"ema": self.ema.updates if self.ema is not None else None, "scaler": self.scaler.state_dict()}

    def restore(self, tensors: Mapping[str, Tensor], counters: Mapping[str, Any]) -> None:
        """Takes over what `tensors` and `counters` of another learner said."""
        self.task.load_state_dict(_under("model.", tensors))
        if self.ema is not None:
            for name, value in _under("ema.", tensors).items():
                self.ema.values[name].copy_(value)
            self.ema.updates = counters["ema"]
        state = {
            index: {key: tensors[f"optimiser.{name}.{key}"].clone() for key in keys}
            for index, (name, _, keys) in enumerate(self._learned())
        }
        self.optimiser.load_state_dict({"state": state, "param_groups": self.optimiser.state_dict()["param_groups"]})
        if counters["scaler"]:
            self.scaler.load_state_dict(counters["scaler"])

    def _learned(self) -> list[tuple[str, torch.nn.Parameter, tuple[str, ...]]]:
        """The name of each parameter that learns, itself, and the names of what the optimiser keeps of it."""
        return [
            (name, parameter, _OF_MATRICES if group["matrices"] else _MOMENTS)
            for group in self.optimiser.param_groups
            for name, parameter in zip(group["names"], group["params"], strict=True)
        ]


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


class Header(NamedTuple):
    """What a checkpoint holds beside its tensors."""

    identity: dict[str, Any]  # recipe, model and data, as plain values
    progress: Progress
    counters: dict[str, Any]

    def to_json(self) -> str:
        """Text for a file's header."""
        return to_json({"identity": self.identity, "progress": asdict(self.progress), "counters": self.counters})

    @classmethod
    def from_json(cls, text: str) -> "Header":
        """The inverse of `to_json`."""
        data = json.loads(text)
        for entry in data["progress"]["history"]:  # a metric that was undefined is null in JSON
            for part in entry.keys() & {"train", "val"}:
                entry[part] = {name: math.nan if value is None else value for name, value in entry[part].items()}
        return cls(data["identity"], Progress(**data["progress"]), data["counters"])


class Later(Mapping[str, Any]):
    """A mapping that is made when it is looked at for the first time: for what takes long or is not known yet."""

    def __init__(self, make: Callable[[], Mapping[str, Any]]) -> None:
        self._make = cache(make)

    def __getitem__(self, key: str) -> Any:
        return self._make()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._make())

    def __len__(self) -> int:
        return len(self._make())


class Store:
    """The checkpoints of a run, step-000000123.safetensors: the newest `keep` of them, and that of the best epoch."""

    suffix = ".safetensors"

    def __init__(self, folder: Path, *, keep: int = 3) -> None:
        self.folder, self.keep = folder, keep

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, in order."""
        if not self.folder.is_dir():
            return []
        found = [_NAME.fullmatch(item.name) for item in self.folder.iterdir()]
        return sorted(int(match[1]) for match in found if match and (match[2] or "") == self.suffix)

    def file(self, step: int) -> Path:
        """Where the checkpoint of a step is."""
        return self.folder / f"step-{step:09d}{self.suffix}"

    def save(self, learner: Learner, progress: Progress, identity: Mapping[str, Any]) -> Path:
        """Writes a checkpoint, then lets old ones go."""
        header = Header(dict(identity), progress, learner.counters()).to_json()
        file = self.file(progress.step)
        self._write(file, header, learner)
        self._rotate(progress)
        return file

    def restore(self, learner: Learner, identity: Mapping[str, Any]) -> Progress:
        """Puts the newest whole checkpoint into a learner of the same recipe, model and data."""
        file, header = self._newest()
        if found := differences(completed(header.identity), identity):
            of_data = any(sentence.startswith("data.") for sentence in found)
            way = "use the same images and labels" if of_data else "use the same options"
            raise TrainingError(f"{self.folder.parent} cannot be resumed with changes: {'; '.join(found)}; {way}")
        self._load(file, header, learner)
        if file == self.file(self.steps()[-1]):
            self._rotate(header.progress)  # a kill may have come before that
        return header.progress

    def _newest(self) -> tuple[Path, Header]:
        """The newest undamaged checkpoint; with a notice for each damaged one."""
        steps = self.steps()
        for step in reversed(steps):
            file = self.file(step)
            try:
                return file, self._check(file)
            except CheckpointError as error:
                instead = "no checkpoint is before it" if step == steps[0] else "the checkpoint before it is used"
                warnings.warn(f"{error}; {instead}", Notice, stacklevel=3)
        raise self._none()

    def _none(self) -> TrainingError:
        """The error where there is no undamaged checkpoint of this kind."""
        run, others = self.folder.parent, [item for item in self.folder.glob("step-*") if item.suffix != self.suffix]
        if self.steps():
            way = f"start again in another folder (--out), or delete {run} and start here"
            return TrainingError(f"all checkpoints of {run} are damaged, so it cannot be resumed; {way}")
        if not others:
            return TrainingError(f"{run} has no checkpoint to resume from; start again without --resume")
        how = "torchrun and --shard fsdp" if self.suffix else "--shard ddp, or one process"
        return TrainingError(f"the checkpoints of {run} were saved in another way: resume it with {how}")

    def _write(self, file: Path, header: str, learner: Learner) -> None:
        tensors = {name: tensor.cpu() for name, tensor in learner.tensors().items()}  # copied once
        write_tensors(file, tensors, {"run": f"{digest(header, tensors)} {header}"})

    def _check(self, file: Path) -> Header:
        weights = read(file)
        checksum, _, header = weights.metadata.get("run", "").partition(" ")
        if checksum != digest(header, weights.tensors):
            raise CheckpointError(f"{file} is damaged: its checksum does not match")
        return Header.from_json(header)

    def _load(self, file: Path, header: Header, learner: Learner) -> None:
        try:
            learner.restore(read(file).tensors, header.counters)
        except KeyError as error:
            raise lacking(file, str(error.args[0])) from error

    def _rotate(self, progress: Progress) -> None:
        for step in self.steps()[: -self.keep]:
            if step != progress.best_step:
                self._remove(self.file(step))

    def _remove(self, file: Path) -> None:
        file.unlink(missing_ok=True)


def lacking(file: Path, name: str) -> TrainingError:
    """The error where a checkpoint does not hold everything that an exact resume needs."""
    run = file.parent.parent
    return TrainingError(
        f"{file} lacks {name}: it was written by an earlier version of vitrail and cannot be resumed exactly; start "
        f"again with the same command, or from the best model of this run: --from {run}"
    )


def completed(identity: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a checkpoint says of itself, with the defaults of options that are newer than it."""
    found = dict(identity)
    with contextlib.suppress(ConfigError, KeyError, TypeError):  # options that no longer exist appear as differences
        known = identity["recipe"]
        recipe = to_dict(from_dict(TrainConfig, known))
        found["recipe"] = {name: value for name, value in recipe.items() if name in known or name not in FREE}
        found["preprocess"] = to_dict(from_dict(Preprocess, identity["preprocess"]))
        model = identity["model"]
        found["model"] = {**model, "config": to_dict(from_dict(FAMILIES[model["family"]].config, model["config"]))}
    plain: dict[str, Any] = from_json(to_json(found))
    return plain


def differences(saved: Any, now: Any, where: str = "") -> list[str]:
    """What two trees of plain values disagree on, one sentence each: "model.dim was 192, is 384"."""
    if isinstance(saved, Mapping) and isinstance(now, Mapping):
        keys = [*saved, *(key for key in now if key not in saved)]
        inner = (differences(saved.get(key), now.get(key), f"{where}.{key}" if where else str(key)) for key in keys)
        return [sentence for sentences in inner for sentence in sentences]
    same = (
        list(saved) == list(now) if isinstance(saved, list | tuple) and isinstance(now, list | tuple) else saved == now
    )
    return [] if same else [f"{where} was {_short(saved)}, is {_short(now)}"]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
