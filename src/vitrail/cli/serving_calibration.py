"""How sure a served model may sound: one temperature, fitted to labelled pictures that the model has not learned from.

They are those that a person names, or those that the run was validated on, as long as they are where they were. What is
found is kept in the run's folder, so that the next worker, and the next start, read it there.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from vitrail.data.broken import too_many
from vitrail.data.dataset import Dataset, Subset
from vitrail.data.known import KNOWN
from vitrail.data.source import open_whole, survey
from vitrail.deploy.calibration import Calibration, calibrate
from vitrail.deploy.engine import Engine
from vitrail.deploy.serve_logs import log
from vitrail.errors import BrokenImage, CheckpointError, ConfigError, DataError
from vitrail.models.checkpoint.files import write_json
from vitrail.packaged import NAME as PACKAGED
from vitrail.packaged import find_packaged

MOST = 2000  # pictures, spread evenly over what is there
FILE = "calibration.json"  # in a run's folder
_TOGETHER = 32
_OTHERS = "its data are not those that it was validated on"

Tell = Callable[[str, str], None]  # what happened, and why


def calibrated(engine: Engine, data: str) -> Calibration:
    """The engine's confidence, fitted to labelled pictures."""
    if engine.card.multi_label:
        raise ConfigError("--calibrate fits one class a picture; this model gives several labels")
    return fitted(engine, open_whole(data, classes=engine.labels, multi_label=False))


def _logged(event: str, why: str) -> None:
    log("warning", event, why=why)


def validated(engine: Engine, run: str, *, tell: Tell = _logged) -> Calibration:
    """The same by what a run was validated on; none where that cannot be had, and who is to `tell` hears why."""
    folder = find_packaged() if run == PACKAGED else Path(run)
    if not (folder / "run.json").is_file() or engine.card.multi_label:
        return Calibration()
    if (kept := _kept(folder, engine)) is not None:
        return kept
    try:
        about = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        pictures = _validation(about, seen=int(_identity(folder, engine)["best"].get("images", 0)))
        if pictures.classes != engine.labels:
            raise DataError(_OTHERS)
        found = fitted(engine, pictures)
    except DataError as error:
        tell("not calibrated", f"{run}: {error}")
        return Calibration()
    if run != PACKAGED:  # a package is not written to
        try:
            keep(folder, engine, found)
        except CheckpointError as error:
            tell("the calibration is not kept", str(error))
    return found


def _validation(about: dict[str, Any], *, seen: int) -> Dataset:
    """The `seen` pictures of a run's validation, chosen as training chose them; nothing is fetched from elsewhere."""
    source = about["source"]
    if source is None or source in KNOWN:
        named = source or "arrays without a name"
        raise DataError(f"its data are {named}; name labelled pictures with vitrail serve … --calibrate")
    splits = survey(source, val=about["val"], seed=about["recipe"]["seed"])
    total, pictures = sum(len(part) for part in splits[:3] if part is not None), splits.val
    # Training left broken ones out. More than it ever does are others: then none is read to find that out.
    if len(pictures) > seen and not too_many(len(pictures) - seen, total):
        pictures = _readable(pictures)
    if len(pictures) != seen:
        raise DataError(_OTHERS)
    return pictures


def _readable(pictures: Dataset) -> Dataset:
    """Without those that are broken."""
    return Subset(pictures, [number for number in range(len(pictures)) if _can_be_read(pictures, number)])


def _can_be_read(pictures: Dataset, number: int) -> bool:
    try:
        pictures.read(number)
    except (BrokenImage, OSError):
        return False
    return True


def fitted(engine: Engine, pictures: Dataset) -> Calibration:
    """The engine's confidence by the labels of some pictures."""
    step = max(1, -(-len(pictures) // MOST))
    chosen = list(range(0, len(pictures), step))
    logits = [
        engine.predict([pictures.read(number) for number in chosen[at : at + _TOGETHER]])
        for at in range(0, len(chosen), _TOGETHER)
    ]
    return calibrate(torch.cat(logits), pictures.labels[chosen])


def _identity(folder: Path, engine: Engine) -> dict[str, Any]:
    """What a calibration belongs to."""
    return {
        "best": json.loads((folder / "best.json").read_text(encoding="utf-8")),
        "precision": engine.card.precision,
    }


def _kept(folder: Path, engine: Engine) -> Calibration | None:
    """What was found before for the same model; None where it was not, or cannot be read."""
    try:
        kept = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return Calibration(**kept["calibration"]) if kept["of"] == _identity(folder, engine) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(folder: Path, engine: Engine, found: Calibration) -> None:
    """Writes a calibration into the folder of the run that it is of."""
    write_json(folder / FILE, {"of": _identity(folder, engine), "calibration": asdict(found)})
