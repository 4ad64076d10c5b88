"""What may be in an .onnx: read from its bytes, field by field, before a runtime sees it.

Protocol buffers are read here by hand: the `onnx` package is not needed to run a model, and it would open
the files that a model names while it reads it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from vitrail.deploy.artefact.allowed_operators import ONNX
from vitrail.errors import CheckpointError

DOMAINS = ("", "ai.onnx")  # two names of ONNX's own
LIMIT = 2**31 - 1  # bytes: more cannot be in a protocol buffer, and weights are in a file beside it


class Field(NamedTuple):
    """One field of a message; ValueError where it is read as another type than it has, which a runtime would skip."""

    number: int
    kind: int  # of the wire: 0 a whole number, 2 bytes, 1 and 5 of a fixed size
    content: memoryview
    whole: int

    @property
    def data(self) -> memoryview:
        """Its bytes."""
        if self.kind != 2:
            raise ValueError(f"field {self.number} has another type than in ONNX")
        return self.content

    @property
    def value(self) -> int:
        """Its whole number."""
        if self.kind != 0:
            raise ValueError(f"field {self.number} has another type than in ONNX")
        return self.whole


@dataclass
class Summary:
    """What was found: the card, the files of weights beside the model, and how many numbers the weights have."""

    metadata: dict[str, str] = field(default_factory=dict)
    external_files: set[str] = field(default_factory=set)
    parameters: int = 0


def check_onnx(data: bytes, path: Path) -> Summary:
    """What is in an .onnx; CheckpointError where it has more than `allowed_operators` and tensors."""
    found = Summary()
    try:
        if len(data) > LIMIT:
            raise ValueError("it is larger than 2 GiB")
        if data[4:8] == b"ORTM":
            raise ValueError("it is in the format of ONNX Runtime, which is not checked")
        _check_model(memoryview(data), path.parent, found)
    except (ValueError, IndexError, OverflowError) as error:
        raise CheckpointError(f"{path} is not an .onnx that vitrail wrote, and is not opened: {error}") from error
    return found


def fields(message: memoryview) -> Iterator[Field]:
    """The fields of a message, in their order; ValueError where they do not fill it."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        if not 8 <= tag < 2**32:  # a runtime would drop the higher bits, and see another field than this one
            raise ValueError("it is not a protocol buffer")
        value, size = 0, 0
        if tag & 7 == 0:
            value, at = _varint(message, at)
        elif tag & 7 == 2:
            size, at = _varint(message, at)
        elif tag & 7 in (1, 5):
            size = 8 if tag & 7 == 1 else 4
        else:
            raise ValueError("it is not a protocol buffer")
        if at + size > len(message):
            raise ValueError("it is cut off, or not a protocol buffer")
        yield Field(tag >> 3, tag & 7, message[at : at + size], value)
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ValueError("it is cut off, or not a protocol buffer")
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("it is not a protocol buffer")


def _text(data: memoryview) -> str:
    return bytes(data).decode()


def _check_model(message: memoryview, folder: Path, found: Summary) -> None:
    graphs = 0
    for one in fields(message):
        if one.number == 7:
            graphs += 1
            _check_graph(one.data, folder, found)
        elif one.number == 8:  # an opset: domain 1
            _check_domain(next((_text(part.data) for part in fields(one.data) if part.number == 1), ""))
        elif one.number == 14:
            key, value = _pair(one.data)
            if key in found.metadata:
                raise ValueError(f"its metadata has {key[:100]!a} twice")
            found.metadata[key] = value
        elif one.number in (20, 25):
            raise ValueError("it has functions or a training graph")
    if graphs != 1:
        raise ValueError(f"it has {graphs} graphs")


def _check_domain(domain: str) -> None:
    if domain not in DOMAINS:
        raise ValueError(f"operators of {domain[:100]!a} are not allowed in it, only those of {DOMAINS[-1]}")


def _pair(message: memoryview) -> tuple[str, str]:
    parts = {one.number: _text(one.data) for one in fields(message)}
    return parts.get(1, ""), parts.get(2, "")


def _check_graph(message: memoryview, folder: Path, found: Summary) -> None:
    for one in fields(message):
        if one.number == 1:
            _check_node(one.data, folder, found)
        elif one.number == 5:
            _check_tensor(one.data, folder, found)
        elif one.number == 15:
            raise ValueError("it has sparse tensors")


def _check_node(message: memoryview, folder: Path, found: Summary) -> None:
    for one in fields(message):
        if one.number == 7:
            _check_domain(_text(one.data))
        elif one.number == 4 and (operator := _text(one.data)) not in ONNX:
            raise ValueError(f"the operator {operator[:100]!a} is not allowed in it")
        elif one.number == 5:
            for part in fields(one.data):
                if part.number in (5, 10):
                    _check_tensor(part.data, folder, found)
                elif part.number in (6, 11):
                    raise ValueError("it has graphs within its graph")
                elif part.number in (22, 23):
                    raise ValueError("it has sparse tensors")


def _check_tensor(message: memoryview, folder: Path, found: Summary) -> None:
    """A tensor has as many numbers as its bytes can hold: here, or in a file of the same folder."""
    sides: list[int] = []
    beside: dict[str, str] = {}
    for one in fields(message):
        if one.number == 1 and one.kind == 2:  # packed
            at = 0
            while at < len(one.data):
                side, at = _varint(one.data, at)
                sides.append(side)
        elif one.number == 1:
            sides.append(one.value)
        elif one.number == 13:
            key, value = _pair(one.data)
            beside[key] = value
    if any(side >= 2**63 for side in sides):
        raise ValueError("a tensor has a negative side")
    room = _external_room(beside, folder, found) if beside else len(message)
    if (count := math.prod(sides)) > 2 * room:  # two numbers of 4 bits in a byte
        raise ValueError(f"a tensor of {count:,} numbers has {room:,} bytes")
    found.parameters += count


def _external_room(about: dict[str, str], folder: Path, found: Summary) -> int:
    """The bytes of a tensor in another file; that is a plain file in the model's folder."""
    name = about.get("location", "")
    file = folder / name
    if not name or Path(name).name != name or "\\" in name or name in (".", "..") or file.is_symlink():
        raise ValueError(f"its weights are in {name[:100]!a}, which is not a file beside it")
    if not file.is_file():
        raise ValueError(f"its weights are in {name[:100]!a}, which does not exist")
    size = file.stat().st_size
    start = int(about.get("offset", "0"))
    length = int(about.get("length", str(max(size - start, 0))))
    if start < 0 or length < 0 or start + length > size:
        raise ValueError(f"a tensor ends after the end of {name[:100]!a}")
    found.external_files.add(name)
    return length
