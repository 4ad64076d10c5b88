"""What weight files say of themselves, without reading their tensors: names, types and shapes."""

import hashlib
import io
import math
import pickletools
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.files import open_regular
from vitrail.strict_json import from_json

MAX_HEADER = 16 * 2**20  # bytes
MAX_TENSORS = 100_000
_MAX_AXES = 16
_CHUNK = 1 << 22  # bytes
_PICKLES = 64 * 2**20  # bytes before the tensors of a file that is not an archive
_LEGACY = 5  # pickles, one after the other, in a file of torch.save before version 1.6
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
    "C64": 64,
}  # fmt: skip
_TYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "F16": torch.float16,
    "BF16": torch.bfloat16, "I32": torch.int32, "F32": torch.float32, "I64": torch.int64, "F64": torch.float64,
}  # fmt: skip


@dataclass(frozen=True)
class Header:
    """The shapes of a file's tensors, as tensors without memory, and its metadata."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    places: dict[str, tuple[int, int]]  # the first byte in the file, and the one after the last


def read_header(file: Path) -> Header:
    """The header of a .safetensors; CheckpointError where it does not describe the file."""
    try:
        with open_regular(file) as opened:
            start = opened.read(8)
            size = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            if not 2 <= size <= MAX_HEADER:
                raise ValueError(f"its header has {size:,} bytes; from 2 to {MAX_HEADER:,} are allowed")
            content = from_json(opened.read(size))
            room = opened.seek(0, 2) - 8 - size
        metadata = content.pop("__metadata__", {})
        "".join(content).encode()  # UnicodeEncodeError, a ValueError, for half of a pair of surrogates
        if len(content) > MAX_TENSORS:
            raise ValueError(f"it has {len(content):,} tensors; the most is {MAX_TENSORS:,}")
        end = 0
        for name, about in sorted(content.items(), key=lambda item: tuple(item[1]["data_offsets"])):
            end = _check_entry(name, about, end)
        if end != room:
            raise ValueError(f"its header describes {end:,} bytes of tensors, and {room:,} follow it")
        tensors = {name: _without_memory(about) for name, about in content.items()}
        if not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError("its metadata are not strings")
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, struct.error) as error:
        raise CheckpointError(f"{file} is damaged or not a safetensors file: {error}") from error
    offsets = {name: about["data_offsets"] for name, about in content.items()}
    places = {name: (8 + size + begin, 8 + size + end) for name, (begin, end) in offsets.items()}
    return Header(tensors, metadata, places)


def digest_of_tensors(text: str, file: Path, header: Header) -> str:
    """What `vitrail.files.digest` makes of a text and the tensors of a file, without reading them as tensors."""
    total = hashlib.sha256(text.encode())
    with open_regular(file) as opened:
        for name in sorted(header.tensors):
            tensor, (start, end) = header.tensors[name], header.places[name]
            total.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
            opened.seek(start)
            while start < end:
                data = opened.read(min(_CHUNK, end - start))
                if not data:
                    raise CheckpointError(f"{file} was cut off while it was read")
                total.update(data)
                start += len(data)
    return total.hexdigest()


def _check_entry(name: str, about: dict[str, Any], start: int) -> int:
    """Where the bytes of a tensor end; ValueError unless they begin at `start` and are as many as its shape needs."""
    sides, (begin, end) = about["shape"], about["data_offsets"]
    if len(sides) > _MAX_AXES or any(type(side) is not int or side < 0 for side in sides):
        raise ValueError(f"the shape of {name[:100]!a} has entries that are not whole numbers")
    bits = math.prod(sides) * _BITS[about["dtype"]]
    if begin != start or end < begin or 8 * (end - begin) != bits:
        raise ValueError(f"the offsets of {name[:100]!a} do not match its shape")
    return int(end)


def _without_memory(about: dict[str, Any]) -> Tensor:
    return torch.empty(about["shape"], dtype=_TYPES.get(about["dtype"], torch.uint8), device="meta")


def check_pickle(file: Path) -> None:
    """CheckpointError for anything but a regular file that `check_archive` finds nothing wrong with."""
    try:
        with open_regular(file) as opened:
            check_archive(opened)
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{file} cannot be read safely: damaged, or not a file of torch.save: {error}") from error


def check_archive(opened: IO[bytes]) -> None:
    """ValueError for what `torch.save` never writes: something that takes more memory than the file has bytes."""
    size = opened.seek(0, 2)
    if not zipfile.is_zipfile(opened):
        opened.seek(0)
        pickles = io.BytesIO(opened.read(_PICKLES))
        for _ in range(_LEGACY):
            _check_opcodes(pickles)
        return
    with zipfile.ZipFile(opened) as archive:
        _check_directory(opened, size, archive.start_dir)
        parts = archive.infolist()
        if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
            raise ValueError("it is compressed")
        if sum(part.file_size for part in parts) > size or len(parts) > 2 * MAX_TENSORS:
            raise ValueError("its members have more bytes than the file")
        for part in parts:
            if part.filename.lower().endswith(".pkl"):
                _check_opcodes(io.BytesIO(archive.read(part)))


def _check_directory(opened: IO[bytes], size: int, start: int) -> None:
    """ValueError where torch would not find the list of members at `start`, as Python does."""
    opened.seek(max(0, size - 98))
    tail = opened.read().rjust(98, b"\0")  # zip64 record (56 bytes), its locator (20), end of the archive (22)
    wide = tail[56:60] == b"PK\x06\x07"
    named = int.from_bytes(tail[48:56] if wide else tail[92:96], "little")
    record = int.from_bytes(tail[64:72], "little") if wide else size - 98
    if tail[76:80] != b"PK\x05\x06" or named != start or record != size - 98:
        raise ValueError("its zip directory is not at its end")


def _check_opcodes(pickle: io.BytesIO) -> None:
    """ValueError for a call of `bytearray`, which torch allows: it allocates as many bytes as the pickle says."""
    for opcode, argument, _ in pickletools.genops(pickle):
        if opcode.name.endswith("GLOBAL") and str(argument).endswith(" bytearray"):
            raise ValueError("it has a bytearray")


def check_tensors(tensors: Mapping[str, Tensor], size: int) -> None:
    """ValueError for tensors that are not plain, or that have more memory than the `size` bytes of their file."""
    for name, tensor in tensors.items():
        check_plain(name, tensor)
    storages = {storage.data_ptr(): storage.nbytes() for storage in (one.untyped_storage() for one in tensors.values())}
    if (total := sum(storages.values())) > size:
        raise ValueError(f"its tensors have {total:,} bytes, and the file {size:,}")


def check_plain(name: str, tensor: Tensor) -> None:
    """ValueError for a tensor without memory of its own for each of its elements: expanded, sparse, meta, quantised."""
    plain = tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.is_quantized
    if not plain or type(tensor) not in (Tensor, torch.nn.Parameter):
        raise ValueError(f"{name[:100]!a} is not a plain tensor")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise ValueError(f"{name[:100]!a} has {tensor.numel():,} elements, and fewer in the file")
