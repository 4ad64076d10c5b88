"""A .pt2 without anything that could run code: torch gets an archive that is written anew, of checked parts alone.

torch's own loader unpickles sample inputs, legacy weights and opaque constants with `weights_only=False`, and loads
compiled libraries. Here the archive may have the graph, raw tensors and the card, and nothing else.
"""

import io
import math
import re
import zipfile
from pathlib import Path, PurePosixPath
from typing import IO, Any

import torch

from vitrail.deploy.artefact.card import KEY
from vitrail.deploy.artefact.engine import quiet
from vitrail.deploy.artefact.pt2_graph import check_name, checked_graph
from vitrail.errors import CheckpointError, reason
from vitrail.models.checkpoint.headers import check_archive
from vitrail.strict_json import from_json, to_json

GRAPH, INPUTS, CARD = "models/model.json", "data/sample_inputs/model.pt", f"extra/{KEY}"
WEIGHTS, CONSTANTS = "data/weights/model_weights_config.json", "data/constants/model_constants_config.json"
_SMALL = 64 * 2**20  # bytes of what is not a tensor
_MOST = 100_000  # members
_TENSOR = re.compile(r"data/(weights/weight|constants/tensor)_\d{1,9}")
_NEEDED = {GRAPH, INPUTS, CARD, WEIGHTS, CONSTANTS, "archive_format", "archive_version"}
_OPTIONAL = {".data/version", ".data/serialization_id", "byteorder"}


def safe_archive(file: IO[bytes], path: Path) -> tuple[io.BytesIO, str]:
    """An archive for `torch.export.load` of what is in a file, and the card; CheckpointError says what must not be."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = _members(archive)
            if sum(info.file_size for info in members.values()) > file.seek(0, 2):
                raise ValueError("its members overlap: they claim more bytes than the file has")
            return _rewritten(archive, members), _read(archive, members[CARD]).decode()
    except (zipfile.BadZipFile, EOFError, NotImplementedError, OSError) as error:
        raise CheckpointError(f"{path} is not a .pt2 of vitrail, or is damaged: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, RuntimeError) as error:
        raise CheckpointError(
            f"{path} is not a .pt2 that vitrail wrote, and is not opened: {_damage(error)}"
        ) from error


def _damage(error: Exception) -> str:
    return str(error) if isinstance(error, ValueError) else f"it is damaged ({type(error).__name__}: {reason(error)})"


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The members by their names below the one folder that they are all in."""
    found: dict[str, zipfile.ZipInfo] = {}
    listed = archive.infolist()
    if len(listed) > _MOST:
        raise ValueError(f"it has {len(listed):,} parts")
    for info in listed:
        root, _, name = info.filename.partition("/")
        if root != listed[0].filename.partition("/")[0] or ".." in PurePosixPath(info.filename).parts:
            raise ValueError(f"a part is called {info.filename[:100]!a}")
        if name in found:
            raise ValueError(f"duplicate member {name[:100]!a}")
        if name not in _NEEDED | _OPTIONAL and _TENSOR.fullmatch(name) is None:
            raise ValueError(f"it has {name[:100]!a}, which is neither a tensor nor the graph")
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size or info.flag_bits & 1:
            raise ValueError(f"{name[:100]!a} is compressed or encrypted")
        found[name] = info
    if missing := _NEEDED - found.keys():
        raise ValueError(f"it has no {min(missing)}")
    return found


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    if info.file_size > _SMALL:
        raise ValueError(f"{info.filename[:100]!a} has {info.file_size:,} bytes; the most is {_SMALL:,}")
    return archive.read(info)


def _rewritten(archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo]) -> io.BytesIO:
    """A fresh archive: the graph and the tables as they were checked, raw tensors, and no pickle at all."""
    from torch.export.pt2_archive import PT2ArchiveWriter  # noqa: PLC0415  (imports the compiler)

    _check_pickle(_read(archive, members[INPUTS]))
    new = io.BytesIO()
    with PT2ArchiveWriter(new) as writer:
        writer.write_string(GRAPH, to_json(checked_graph(_read(archive, members[GRAPH]))))
        for table in (WEIGHTS, CONSTANTS):
            writer.write_string(table, to_json(_payloads(archive, members, table)))
        for name in filter(_TENSOR.fullmatch, members):
            writer.write_bytes(name, archive.read(members[name]))
        writer.write_bytes(INPUTS, b"")  # torch needs the part, and takes an empty one for no inputs
    new.seek(0)
    return new


def _check_pickle(data: bytes) -> None:
    """ValueError where the sample inputs hold anything but tensors; torch never gets to see them."""
    try:
        check_archive(io.BytesIO(data))
        with quiet():
            torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle raises almost anything
        raise ValueError("its sample inputs are a pickle of other things than tensors") from error


def _payloads(archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], table: str) -> dict[str, Any]:
    """The table of tensors: each is raw bytes of the archive, on the CPU, and none is made larger than its bytes."""
    content = from_json(_read(archive, members[table]))
    if set(content) != {"config"}:
        raise ValueError(f"{table} has unknown keys")
    for name, about in content["config"].items():
        check_name(name)
        file = f"{table.rpartition('/')[0]}/{about['path_name']}"
        if about["use_pickle"] or _TENSOR.fullmatch(file) is None or file not in members:
            raise ValueError(f"the tensor {name[:100]!a} is a pickle, or not in the archive")
        meta = about["tensor_meta"]
        sides = [int(side["as_int"]) for side in meta["sizes"]]
        if min(sides, default=0) < 0 or meta["device"]["type"] != "cpu":
            raise ValueError(f"the tensor {name[:100]!a} is not a plain tensor of the CPU")
        if math.prod(sides) > members[file].file_size:
            raise ValueError(f"the tensor {name[:100]!a} has {math.prod(sides):,} elements, and fewer bytes")
    checked: dict[str, Any] = content
    return checked
