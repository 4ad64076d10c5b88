"""Trains a run for each fold, one after the other, and sums them up; stopped anywhere, it is resumed exactly.

    found = train_folds("photos/", folds=5)
    found.scores, found.ensemble, found.report()

The folder holds fold-1, fold-2 ..., each a run like any other; folds.json, what they have in common;
out_of_fold.csv, a prediction for each image by the model that never saw it; and the ensemble, where answers can be
averaged.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from vitrail.data.dataset import Splits
from vitrail.errors import CheckpointError, ConfigError, TrainingError
from vitrail.files import write_json
from vitrail.hardware import device as choose_device
from vitrail.runs.record import Record, Result
from vitrail.strict_json import read_json
from vitrail.training.first_try import SETTINGS, own_sizes
from vitrail.training.folds.ensemble import write_ensemble
from vitrail.training.folds.folds_report import CrossValidation
from vitrail.training.folds.out_of_fold import pool, predict_fold, scores, write_table
from vitrail.training.one_run import check_new_run
from vitrail.training.run import RUNS, data_name, train

FILE, TABLE = "folds.json", "out_of_fold.csv"
MOST = 100
_NEVER = {"data", "folds", "folder", "resume", "fold", "device", "silent", "say", "sinks", "ledger"}  # among options
_KINDS: dict[str, tuple[type, ...]] = {
    "val": (str, float, int),
    "label": (str, list),
    **dict.fromkeys(("group", "start", "teacher"), (str,)),
}
_VERSION = 1


def is_folds(folder: str | Path) -> bool:
    """Whether a folder holds folds."""
    return (Path(folder) / FILE).is_file()


def train_folds(
    data: str | Path | None = None, *, folds: int | None = None, folder: str | Path | None = None, resume: bool = False,
    device: str | torch.device | None = None, silent: bool = False, say: Callable[[str], None] | None = None,
    **options: Any,
) -> CrossValidation:  # fmt: skip
    """Trains `folds` models, each without the images of its fold; options are those of `train`.

    In each fold, a part of the other images validates: the images of the fold choose nothing, neither the best epoch
    nor a threshold. `resume` continues the folds in `folder`, bit by bit as if they had never stopped.
    """
    _refuse_processes()
    tell = say or (lambda _: None)
    if resume:
        path, setup = _read(folder, data, folds, options)
    else:
        path, setup = _begin(data, folds, folder, options)
    count, where = int(setup["folds"]), choose_device(device)
    for number in range(1, count + 1):
        fold_folder = path / f"fold-{number}"
        if _is_over(fold_folder):
            tell(f"fold {number} of {count} is complete: {fold_folder}")
            continue
        tell(f"fold {number} of {count}: {fold_folder}")
        started = any((fold_folder / "checkpoints").glob("step-*"))
        given = {} if started else {"data": setup["data"], "fold": (number, count), **setup["options"]}
        given |= _size_of_first(path / "fold-1") if given and number > 1 else {}
        train(folder=fold_folder, resume=started, device=where, silent=silent, **given)
    done = tuple(predict_fold(path / f"fold-{number}", number, where) for number in range(1, count + 1))
    pooled = pool(done)
    write_table(path / TABLE, done)
    ensemble = write_ensemble(path, done, pooled)
    return CrossValidation(
        folder=path, folds=done, pooled=pooled, scores=tuple(scores(done, pooled)), ensemble=ensemble
    )


def _size_of_first(folder: Path) -> dict[str, Any]:
    """The image size of a linear head that the first fold has chosen: an ensemble needs one size."""
    record = Record.read(folder)
    (height, width), heads = record.preprocess.image_size, [one for one in SETTINGS.values() if one.sizes]
    chosen = any(record.start == one.start and height in own_sizes(one) for one in heads)
    return {"image_size": height} if chosen and record.recipe.get("probe") and height == width else {}


def _refuse_processes() -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("--folds trains in one process; start it without torchrun, or train the folds one by one")


def _begin(
    data: str | Path | None, folds: int | None, folder: str | Path | None, options: Mapping[str, Any]
) -> tuple[Path, dict[str, Any]]:
    """Writes folds.json into a folder that has none."""
    if data is None or isinstance(data, Splits):
        raise ConfigError("folds need the name of the data: a folder of images, a table, arrays, or a known name")
    if folds is None or not 2 <= folds <= MOST:
        raise ConfigError(f"--folds {folds} is not allowed: must be 2 to {MOST}")
    if isinstance(options.get("teacher"), torch.nn.Module):
        raise ConfigError("folds need the name of the teacher: a run's folder or a file")
    path = Path(folder) if folder is not None else _new_folder(str(data), folds)
    if is_folds(path) or any((path / "checkpoints").glob("step-*")):
        raise TrainingError(
            f"{path} already holds a run; resume it (--resume {path}), or choose another folder (--out)"
        )
    check_new_run(path)
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    setup = {
        "data": str(data),
        "folds": folds,
        "options": {name: one for name, one in plain.items() if one is not None},
    }
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / FILE, {"version": _VERSION, **setup})
    return path, setup


def _new_folder(data: str, folds: int) -> Path:
    name = f"{data_name(data, data)}-{folds}fold"
    taken = [RUNS / name, *(RUNS / f"{name}-{number}" for number in range(2, 10_000))]
    return next(path for path in taken if not path.exists())


def _read(
    folder: str | Path | None, data: str | Path | None, folds: int | None, options: Mapping[str, Any]
) -> tuple[Path, dict[str, Any]]:
    """What folds.json says; nothing of it can be changed."""
    if folder is None or not is_folds(folder):
        raise TrainingError(f"{folder} holds no folds to resume: it has no {FILE}")
    given = [name for name, value in {"data": data, "folds": folds, **options}.items() if value is not None]
    if given:
        raise ConfigError(f"folds are resumed as they were started: leave out {', '.join(given)}")
    try:
        setup = read_json(Path(folder) / FILE)
        count, plain = int(setup["folds"]), dict(setup["options"])
        if not isinstance(setup["data"], str) or setup["folds"] != count or not 2 <= count <= MOST:
            raise ValueError(setup["data"], setup["folds"])
        odd = [name for name in plain if name in _NEVER or not isinstance(plain[name], _KINDS.get(name, object))]
        if odd:
            raise ValueError(f"it has the options {', '.join(odd)}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainingError(
            f"{Path(folder) / FILE} is damaged ({error!r:.200}); start again in another folder"
        ) from error
    return Path(folder), {"data": setup["data"], "folds": count, "options": plain}


def _is_over(folder: Path) -> bool:
    """Whether a fold has been evaluated on what it held out, which is the last that happens."""
    try:
        return any(name.startswith("test_") for name in Result.read(folder).metrics)
    except CheckpointError:
        return False
