"""Which model it is that answers: its name, and a mark of its weights that tells it from all others."""

import hashlib
import json
from pathlib import Path

from vitrail.deploy.engine import Engine, TorchEngine
from vitrail.models.checkpoint.files import digest

MARK = "@"  # between the two, as between a name and its revision
_LENGTH = 12  # letters of the mark


def identify(engine: Engine) -> str:
    """`runs/demo@3f2a9c1b7e04`: where the model was found, and a mark of all that its answers depend on."""
    return f"{engine.source}{MARK}{_mark(engine)[:_LENGTH]}"


def same_model(one: str | None, other: str) -> bool:
    """Whether two identities are of the same weights, wherever they were found."""
    return one is not None and one.rpartition(MARK)[2] == other.rpartition(MARK)[2]


def _mark(engine: Engine) -> str:
    """A SHA-256 of weights and of what is made of their logits; that of an artefact is of its files."""
    card = engine.card
    pixels, labels = (card.image_size, card.step, card.mean, card.std), (card.labels, card.multi_label, card.thresholds)
    way = json.dumps([pixels, labels, engine.half, engine.dynamic])
    if isinstance(engine, TorchEngine):
        return digest(way, engine.module.model.state_dict())
    total = hashlib.sha256(way.encode())
    for file in files_of(engine.source):
        with file.open("rb") as opened:
            total.update(hashlib.file_digest(opened, "sha256").digest())
    return total.hexdigest()


def files_of(artefact: str | Path) -> list[Path]:
    """The file of an artefact, and that of the weights beside it."""
    path = Path(artefact)
    beside = {".xml": ".bin", ".onnx": ".onnx.data"}.get(path.suffix)
    files = [path] if beside is None else [path, path.with_suffix(beside)]
    return [file for file in files if file.is_file()]
