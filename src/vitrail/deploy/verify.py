"""What a path is and whether it is whole: runs, checkpoints, exports, packed images and tables of predictions.

Nothing is opened for that: headers, cards and checksums are read, and no model is built in memory.
"""

import csv
import importlib
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrail.checksums import FILE, digest_of, read_checksums, write_checksums
from vitrail.data.feeds.pack_file import MAGIC, Unusable
from vitrail.data.feeds.pack_file import read as read_pack
from vitrail.deploy.artefact.card import KEY, Card
from vitrail.deploy.artefact.fingerprint import files_of
from vitrail.deploy.artefact.onnx_check import check_onnx
from vitrail.deploy.artefact.opening import ARTEFACTS, CERTIFICATE, artefacts_in
from vitrail.deploy.artefact.openvino_check import check_openvino
from vitrail.deploy.artefact.pt2_archive import safe_archive
from vitrail.deploy.artefact.runtimes import read_artefact
from vitrail.deploy.bulk.table_files import FORMATS
from vitrail.errors import CheckpointError, DataError, VitrailError
from vitrail.files import open_regular
from vitrail.models.checkpoint.inspection import inspect_checkpoint
from vitrail.report import Facts, Report, Section, Table, Value
from vitrail.runs.paths import checkpoint_path
from vitrail.runs.record import FILES, Record, Result, is_run
from vitrail.strict_json import from_json, to_json

_WEIGHTS = (".safetensors", ".pth", ".pt", ".bin", ".tar", ".json")
_TABLE = ("path", "error", "model")  # columns of every table of predictions


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What a path is, what is known of it, and what is wrong with it."""

    path: str
    kind: str
    facts: dict[str, Value] = field(default_factory=dict)
    checksums: dict[str, str] = field(default_factory=dict)  # of each file: ok, changed, missing, not recorded
    problems: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Verification({self.path}: {self.kind}, {'whole' if self.ok else self.problems[0]})"

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def to_json(self) -> str:
        """All of it as JSON."""
        return to_json({**vars(self), "ok": self.ok}, indent=2)

    def report(self) -> Report:
        """The same as tables."""
        facts: dict[str, Value] = {"kind": self.kind, **self.facts, "verdict": "whole" if self.ok else "not usable"}
        sections: list[Section] = [Facts("What it is", facts, {"bytes": "bytes"} if "bytes" in facts else {})]
        if self.checksums:
            rows: list[dict[str, Value]] = [{"file": name, "checksum": state} for name, state in self.checksums.items()]
            sections.append(Table("Files", {"file": "", "checksum": ""}, rows))
        if self.problems:
            sections.append(Table("Problems", {"problem": ""}, [{"problem": text} for text in self.problems]))
        return Report(f"Verified: {self.path}", tuple(sections))


def verify(source: str | Path, *, accept: bool = False) -> Verification:
    """What a path is, and whether it is whole; `accept` first writes new checksums, of files edited on purpose."""
    path = Path(checkpoint_path(source)).expanduser()
    if not path.exists():
        raise CheckpointError(f"{path} does not exist")
    if accept:
        _accept(path if path.is_dir() else path.parent)
    kind, look = _look(path)
    facts: dict[str, Value] = {}
    problems: list[str] = []
    try:
        for found in look(path):
            facts |= found
    except (VitrailError, OSError) as error:
        problems.append(str(error))
    states = _checksums(path)
    if wrong := [name for name, state in states.items() if state in ("changed", "missing")]:
        way = f"restore them, or accept the change: vitrail verify {path if path.is_dir() else path.parent} --accept"
        problems = [text for text in problems if FILE not in text]
        problems.append(f"{', '.join(wrong)} changed after {FILE} was written; {way}")
    facts["licence"] = facts.get("licence") or "not stated"
    facts["bytes"] = _bytes(path)
    return Verification(path=str(source), kind=kind, facts=facts, checksums=states, problems=tuple(problems))


def _accept(folder: Path) -> None:
    artefacts = [file.name for path in artefacts_in(folder) for file in files_of(path)]
    names = [CERTIFICATE, *artefacts] if artefacts else FILES
    if not any((folder / name).is_file() for name in names):
        raise CheckpointError(f"{folder} has no files of a run or an export; there is nothing to accept")
    write_checksums(folder, names)


def _look(path: Path) -> tuple[str, Any]:
    """The kind of a path, and what reads it."""
    if path.is_dir():
        if is_run(path):
            return "run", _run
        if artefacts_in(path):
            return "folder of artefacts", _artefacts
        packs = sorted(path.glob("*.pack"))
        return ("cache of packed images", _packs) if packs else ("checkpoint", _checkpoint)
    if path.suffix in ARTEFACTS:
        return "artefact", _artefact
    if path.suffix in FORMATS or path.name.endswith(".partial"):
        return "table of predictions", _table
    if path.suffix in _WEIGHTS:
        return "checkpoint", _checkpoint
    with open_regular(path) as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - len(MAGIC)))
        if path.suffix == ".pack" or file.read() == MAGIC:
            return "packed images", _pack
    raise CheckpointError(
        f"{path} is not a run, a checkpoint, an exported model, packed images or a table of predictions"
    )


def _run(path: Path) -> Iterator[dict[str, Value]]:
    record = Record.read(path)
    yield {"task": record.task.kind, "licence": record.licence, "trained on": record.source}
    result = Result.read(path)
    yield {name: value for name, value in result.metrics.items() if not name.startswith("test_")}
    yield from _checkpoint(path)


def _checkpoint(path: Path) -> Iterator[dict[str, Value]]:
    found = inspect_checkpoint(path)
    yield {"model": found.model, "written by": found.written_by, "parameters": found.parameters}
    yield {"tensors": len(found.tensors), "checksum": found.checksum}
    if found.config is not None:
        height, width = found.config.image_size
        yield {"image size": f"{height} x {width}", "outputs of the head": found.config.num_classes}
    if found.problem is not None:
        raise CheckpointError(found.problem)


def _artefacts(path: Path) -> Iterator[dict[str, Value]]:
    found = artefacts_in(path)
    yield {"artefacts": ", ".join(one.name for one in found)}
    for one in found:
        yield from _artefact(one)


def _artefact(path: Path) -> Iterator[dict[str, Value]]:
    if path.suffix == ".pt2":
        with open_regular(path) as file:
            text: str | None = safe_archive(file, path)[1]
    elif path.suffix == ".onnx":
        text = check_onnx(read_artefact(path), path).metadata.get(KEY)
    else:
        text = check_openvino(read_artefact(path), path)
    card = Card.from_json(text, name=str(path))
    height, width = card.preprocess.image_size
    yield {"task": card.config.kind, "model": card.about, "family": card.family, "precision": card.precision}
    yield {"image size": f"{height} x {width}", "licence": card.licence, "written by": f"vitrail {card.vitrail}"}


def _packs(path: Path) -> Iterator[dict[str, Value]]:
    files = sorted(path.glob("*.pack"))
    yield {"files": len(files)}
    for file in files:
        yield from _pack(file)


def _pack(path: Path) -> Iterator[dict[str, Value]]:
    try:
        pixels, about = read_pack(path, whole=True)
    except Unusable as error:
        raise DataError(f"{path}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: its description is damaged ({error!r:.300})") from error
    yield {"pixels": pixels.numel(), "checksum": "matches its footer", "of": str(about.get("name", path.stem))}


def _table(path: Path) -> Iterator[dict[str, Value]]:
    """Rows, models and errors of a table; each image has one row."""
    seen: set[str] = set()
    models: set[str] = set()
    rows = errors = 0
    for row in _rows(path):
        if not isinstance(row, dict) or any(name not in row for name in _TABLE) or not isinstance(row["path"], str):
            raise DataError(f"{path} is not a table of predictions: its columns are not {', '.join(_TABLE)} and others")
        rows += 1
        errors += bool(row["error"])
        models.add(str(row["model"]))
        if row["path"] in seen:
            raise DataError(f"{path} has {row['path']} twice")
        seen.add(row["path"])
    yield {"rows": rows, "images without an answer": errors, "model": ", ".join(sorted(models)) or None}
    if len(models) > 1:
        raise DataError(f"{path} has rows of {len(models)} models")


def _rows(path: Path) -> Iterator[Any]:
    try:
        with open_regular(path) as file:
            if path.suffix == ".parquet":
                parquet = importlib.import_module("pyarrow.parquet")
                for batch in parquet.ParquetFile(file).iter_batches(columns=list(_TABLE)):
                    yield from batch.to_pylist()
            elif path.suffix == ".csv":
                with io.TextIOWrapper(file, "utf-8", errors="surrogateescape", newline="") as text:
                    yield from csv.DictReader(text)
            else:
                yield from map(from_json, file)
    except ImportError as error:
        raise DataError(f"{path} needs pyarrow: pip install pyarrow") from error
    except (ValueError, KeyError, csv.Error) as error:  # those of Arrow are among them
        raise DataError(f"{path} is not a readable table: {error}") from error


def _checksums(path: Path) -> dict[str, str]:
    """The state of every file that has a checksum, or that the model is in."""
    folder, known = (path, read_checksums(path)) if path.is_dir() else (path.parent, read_checksums(path.parent))
    if not path.is_dir():
        known = {file.name: known[file.name] for file in files_of(path) if file.name in known}
    states = {}
    for name, expected in known.items():
        there = (folder / name).is_file()
        states[name] = "missing" if not there else "ok" if digest_of(folder / name) == expected else "changed"
    if path.is_dir() and is_run(path):
        states |= {name: "not recorded" for name in FILES if name not in known and (path / name).is_file()}
    return states


def _bytes(path: Path) -> int:
    files = path.iterdir() if path.is_dir() else files_of(path)
    return sum(file.stat().st_size for file in files if file.is_file())
