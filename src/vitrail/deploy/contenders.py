"""The engines that a benchmark compares: what was named, opened in every way worth trying on this machine."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from vitrail.deploy.artefact.engine import CompiledEngine, Engine, TorchEngine
from vitrail.deploy.artefact.opening import ARTEFACTS, artefacts_in, open_engine, open_weights
from vitrail.errors import ConfigError
from vitrail.hardware import bf16_works
from vitrail.runs.paths import names_model
from vitrail.runs.trained import TrainedModel


def open_contenders(
    sources: Sequence[str], *, threads: Sequence[int] = (), compiled: bool = False
) -> tuple[dict[str, Engine], list[Path]]:
    """Engines of artefacts, folders of artefacts, runs and checkpoints, by name; and the folders among these.

    With `compiled`, runs are tried compiled as well.
    """
    engines: dict[str, Engine] = {}
    folders = []
    for source in sources:
        path = Path(source)
        inside = artefacts_in(path) if path.is_dir() else [path] if path.suffix in ARTEFACTS else []
        if inside:
            engines |= open_artefacts(inside, threads)
            folders += [path] if path.is_dir() else []
        elif names_model(source):
            trained = open_weights(source)
            engines |= open_compiled(trained) if compiled else {}
            engines[source] = TorchEngine(trained)
        else:
            raise ConfigError(f"{source} is not an artefact, a folder of artefacts, a run or a checkpoint")
    return engines, folders


def open_artefacts(paths: Sequence[Path], threads: Sequence[int] = ()) -> dict[str, Engine]:
    """An engine for each artefact and each number of threads: those asked for, or all cores and half of them.

    An OpenVINO file is also opened with bf16 for what is not int8; a float32 .onnx also in dynamic int8.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if wrong := [count for count in threads if not 1 <= count <= cores]:
        raise ConfigError(f"--threads {wrong[0]} is not allowed: this machine has {cores} cores, so 1 to {cores}")
    tried = tuple(threads) or tuple(dict.fromkeys((cores, max(1, cores // 2))))
    torch.set_num_threads(max(tried))
    engines: dict[str, Engine] = {}
    for path in paths:
        if path.suffix == ".pt2":  # torch has one number of threads for the whole process
            engines[path.name] = open_engine(path)
            continue
        for count in tried:
            name = path.name if len(tried) == 1 else f"{path.name}, {count} thread{'s' if count > 1 else ''}"
            engines[name] = open_engine(path, threads=count)
            if path.suffix == ".xml":
                engines[f"{name}, bf16"] = open_engine(path, threads=count, half=True)
            if path.suffix == ".onnx" and engines[name].card.precision == "float32":
                engines[f"{name}, dynamic int8"] = open_engine(path, threads=count, dynamic=True)
    return engines


def open_compiled(trained: TrainedModel) -> dict[str, Engine]:
    """A run compiled for this processor, in float32 and, where it can, in bf16."""
    engines: dict[str, Engine] = {f"{trained.source}, compiled": CompiledEngine(trained)}
    if bf16_works():
        engines[f"{trained.source}, compiled bf16"] = CompiledEngine(trained, half=True)
    return engines


def base_of(engines: Mapping[str, Engine]) -> str:
    """The engine that others are compared with: the last in float32, with the most threads; else the last."""
    plain = [name for name, one in engines.items() if one.card.precision == "float32" and not (one.half or one.dynamic)]
    same = [name for name in plain if engines[name].source == engines[plain[-1]].source] or [*engines]
    return max(reversed(same), key=lambda name: engines[name].threads or 0)
