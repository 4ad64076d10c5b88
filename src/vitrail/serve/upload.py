"""Uploaded bodies -> files -> images.

Forms are parsed here and not by python-multipart. That parser accepts a truncated form without an error and returns
only the files before the cut, so a client would miss answers without knowing; and Starlette writes files of more than
1 MB to disk, while this service promises not to store images. The body is in memory already, within its limits, and
files are views of it.
"""

import re
from typing import NamedTuple

from starlette.exceptions import HTTPException

from vitrail.serve.config import ServeConfig

_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^;\s]{1,70}))', re.IGNORECASE)
_FILENAME = re.compile(rb'filename="((?:[^"\\]|\\.)*)"|filename=([^;\s]+)', re.IGNORECASE)
_RAW_TYPES = ("image/", "application/octet-stream")
_MAX_NAME = 120  # characters
_MAX_HEADERS = 8192  # bytes of the headers of one part


Data = bytes | bytearray | memoryview


class File(NamedTuple):
    """An uploaded file."""

    name: str
    data: Data


def parse_files(body: bytes | bytearray, content_type: str, config: ServeConfig) -> list[File]:
    """The files of a form, or the body itself as one file."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        match = _BOUNDARY.search(content_type)
        if match is None:
            raise HTTPException(400, "the Content-Type of the form has no boundary")
        files = _parse_form(body, (match[1] or match[2]).encode("latin-1", "replace"), config.max_files)
    elif kind.startswith(_RAW_TYPES):
        files = [File("image", body)]
    else:
        sent = f" ({kind[:80]})" if kind else ""
        raise HTTPException(415, f"missing or unsupported Content-Type{sent}; send multipart/form-data or image/…")
    if not files:
        raise HTTPException(400, "the form contains no file; send each image as a part with a filename")
    return files


def _parse_form(body: bytes | bytearray, boundary: bytes, max_parts: int) -> list[File]:
    """The parts of a form that are files (RFC 7578)."""
    pieces = _split(body, b"\r\n--" + boundary, max_parts + 1)  # preamble, the parts, "--" at the end
    ended = bytes(pieces[-1][:2]) == b"--"
    if len(pieces) == max_parts + 2 and not ended:
        raise HTTPException(413, f"the form exceeds the limit of {max_parts} parts")
    if len(pieces) < 2 or not ended:
        raise HTTPException(400, "the form is incomplete: its last boundary is missing")
    files = []
    for piece in pieces[1:-1]:
        head, blank, _ = bytes(piece[: _MAX_HEADERS + 4]).partition(b"\r\n\r\n")
        if not blank:
            raise HTTPException(400, f"a part of the form has no headers, or more than {_MAX_HEADERS} bytes of them")
        if (match := _FILENAME.search(head)) is not None:
            name = match[1] if match[1] is not None else match[2]
            files.append(File(clean_name(name), piece[len(head) + 4 :]))
    return files


def _split(body: bytes | bytearray, line: bytes, most: int) -> list[memoryview]:
    """As `split` does, but without copies, and the line break before the first line may be missing."""
    view, start = memoryview(body), 0
    pieces: list[memoryview] = []
    at = -2 if body.startswith(line[2:]) else body.find(line)
    while at != -1 and len(pieces) < most:
        pieces.append(view[start : max(at, 0)])
        start = at + len(line)
        at = body.find(line, start)
    return [*pieces, view[start:]]


def clean_name(name: bytes) -> str:
    """The last part of a path, with printable characters only."""
    text = name.decode("utf-8", "replace").replace("\\", "/").rpartition("/")[2]
    return "".join(letter for letter in text if letter.isprintable())[:_MAX_NAME] or "image"
