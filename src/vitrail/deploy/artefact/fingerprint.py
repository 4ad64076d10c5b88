"""Which model an engine runs: its name, and a hash of its weights and of everything else that answers depend on."""

import hashlib
from pathlib import Path

from vitrail.config import to_dict
from vitrail.data.targets.target import schema_to_dict
from vitrail.deploy.artefact.engine import Engine, TorchEngine
from vitrail.files import digest
from vitrail.strict_json import to_json

MARK = "@"  # between the two, as between a name and its revision
_LENGTH = 12  # letters of the hash
_MODEL = "backbone."  # where a task has its model; a head may be beside it


def fingerprint(engine: Engine) -> str:
    """`runs/demo@3f2a9c1b7e04`: the path of the model, and a hash of what its answers depend on."""
    return f"{engine.source}{MARK}{_hash(engine)[:_LENGTH]}"


def same_model(one: str | None, other: str) -> bool:
    """Whether two fingerprints are of the same model, wherever its files are."""
    return one is not None and one.rpartition(MARK)[2] == other.rpartition(MARK)[2]


def files_of(artefact: str | Path) -> list[Path]:
    """The file of an artefact, and that of the weights beside it."""
    path = Path(artefact)
    beside = {".xml": ".bin", ".onnx": ".onnx.data"}.get(path.suffix)
    files = [path] if beside is None else [path, path.with_suffix(beside)]
    return [file for file in files if file.is_file()]


def file_bytes(artefact: str | Path) -> int:
    """The size of an artefact with the weights beside it."""
    return sum(file.stat().st_size for file in files_of(artefact))


def _hash(engine: Engine) -> str:
    """A SHA-256 of weights, task and preprocessing; that of an artefact is of its files."""
    card = engine.card
    meaning = [to_dict(card.config), schema_to_dict(card.schema), card.state, to_dict(card.preprocess), card.step]
    text = to_json([meaning, engine.half, engine.dynamic], ascii_only=True)
    if isinstance(engine, TorchEngine):
        inner = {name: value for name, value in engine.task.state_dict().items() if not name.startswith(_MODEL)}
        return digest(text, engine.trained.backbone.state_dict() | inner)
    total = hashlib.sha256(text.encode())
    for file in files_of(engine.source):
        with file.open("rb") as opened:
            total.update(hashlib.file_digest(opened, "sha256").digest())
    return total.hexdigest()
