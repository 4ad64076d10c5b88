"""What may be in an OpenVINO IR: layers of its own opsets, whose constants lie within the .bin; no entities."""

import re
from pathlib import Path
from typing import Any
from xml.parsers import expat

from vitrail.deploy.artefact.allowed_operators import OPENVINO
from vitrail.deploy.artefact.card import KEY
from vitrail.errors import CheckpointError

_OPSET = re.compile(r"opset[1-9]\d?", re.ASCII)
_WHOLE = re.compile(r"\d{1,18}", re.ASCII)
_SIDES = re.compile(r"\d{0,18}(,\s?\d{1,18}){0,15}", re.ASCII)
LIMIT = 512 * 2**20  # bytes of the .xml
_DEEPEST = 100  # elements within elements


class _Reader:
    """Checks elements as they come."""

    def __init__(self, room: int) -> None:
        self.room, self.path, self.card, self.weights = room, list[str](), "", set[tuple[int, int]]()

    def start(self, name: str, about: dict[str, str]) -> None:
        self.path.append(name)
        if len(self.path) > _DEEPEST:
            raise ValueError("its elements are nested too deeply")
        if len(self.path) == 1 and name != "net":
            raise ValueError(f"it begins with {name[:100]!a}, not with net")
        if name == "layer" and _OPSET.fullmatch(about.get("version", "")) is None:
            raise ValueError(f"it has a layer of {about.get('version', '')[:100]!a}; those of OpenVINO are opset1 ...")
        if name == "layer" and about.get("type") not in OPENVINO:
            raise ValueError(f"the layer {about.get('type', '')[:100]!a} is not allowed in it")
        if name == "data" and ("offset" in about or "size" in about):
            given = about.get("offset", ""), about.get("size", "")
            if not all(map(_WHOLE.fullmatch, given)):
                raise ValueError("the offset or size of a constant is not a whole number")
            start, size = map(int, given)
            if start + size > self.room:
                raise ValueError(f"a constant ends {start + size - self.room:,} bytes after the end of the .bin")
            if _SIDES.fullmatch(about.get("shape", "")) is None:
                raise ValueError("the shape of a constant has entries that are not whole numbers")
            self.weights.add((start, size))
        if name == KEY and "rt_info" in self.path:
            self.card = about.get("value", "")

    def end(self, name: str) -> None:
        self.path.pop()

    def refuse(self, *about: Any) -> None:
        raise ValueError("it declares a document type or entities")


def check_openvino(data: bytes, path: Path) -> str:
    """The card in the text of an .xml; CheckpointError where it has more than layers and constants of its .bin."""
    weights = path.with_suffix(".bin")
    try:
        if len(data) > LIMIT:
            raise ValueError(f"it is larger than {LIMIT:,} bytes")
        if "\0" in data.decode():  # UTF-16, by which the two readers might mean different things
            raise ValueError("it is not UTF-8 text")
        if weights.is_symlink() or not weights.is_file():
            raise ValueError(f"{weights.name} is not a file beside it")
        reader = _Reader(weights.stat().st_size)
        parser = expat.ParserCreate("utf-8")  # as it is given to OpenVINO, whatever it says of itself
        parser.StartElementHandler, parser.EndElementHandler = reader.start, reader.end
        parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = reader.refuse
        parser.Parse(data, True)
    except (ValueError, expat.ExpatError) as error:
        raise CheckpointError(f"{path} is not an .xml that vitrail wrote, and is not opened: {error}") from error
    return reader.card
