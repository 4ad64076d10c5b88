"""Uploads that a service must outlive: truncated, mutated, oversized, mislabelled, and forms that are none."""

import random
import struct
import zlib
from functools import cache
from io import BytesIO
from typing import NamedTuple

import numpy as np
from PIL import Image

KINDS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM")


class Upload(NamedTuple):
    """One request."""

    kind: str
    path: str
    body: bytes
    content_type: str


@cache
def originals() -> tuple[bytes, ...]:
    """Whole files of every format, grey and colour."""
    pixels = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    files = []
    for kind in KINDS:
        for image in (Image.fromarray(pixels), Image.fromarray(pixels[..., 0])):
            file = BytesIO()
            image.save(file, format=kind)
            files.append(file.getvalue())
    return tuple(files)


def bomb(width: int, height: int, *, written: int = 1 << 20) -> bytes:
    """A small PNG that claims to be huge; `written` bytes of pixels really follow, all zero."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes(min(width * height + height, written)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def _whole(random: random.Random) -> bytes:
    return random.choice(originals())


def _truncated(random: random.Random) -> bytes:
    file = _whole(random)
    return file[: random.randrange(len(file))]


def _mutated(random: random.Random) -> bytes:
    file = bytearray(_whole(random))
    span = len(file) if random.random() < 0.5 else min(len(file), 64)  # anywhere, or in the head
    for _ in range(random.randint(1, 12)):
        file[random.randrange(span)] = random.choice((0, 255, 127, random.randrange(256)))
    return bytes(file)


def _spliced(random: random.Random) -> bytes:
    one, two = _whole(random), _whole(random)
    return one[: random.randrange(len(one))] + two[random.randrange(len(two)) :]


def _bomb(random: random.Random) -> bytes:
    sides = (1, 100, 4_000, 5_001, 60_000, 2**31 - 1)
    return bomb(random.choice(sides), random.choice(sides), written=1 << random.randint(8, 24))


def _foreign(random: random.Random) -> bytes:
    return random.choice(
        (b"", b"\0", b"<html></html>", b"<svg xmlns='x'/>", b"%PDF-1.4", b"PK\3\4", b"GIF89a", b"\xff\xd8\xff", b"BM")
    ) + random.randbytes(random.randrange(200))


_FILES = {
    "whole": _whole,
    "truncated": _truncated,
    "mutated": _mutated,
    "spliced": _spliced,
    "bomb": _bomb,
    "foreign": _foreign,
}
_TYPES = (
    "image/png",
    "image/jpeg",
    "IMAGE/x",
    "application/octet-stream",
    "text/html",
    "",
    "multipart/form-data",
    "\xff",
)
_BOUNDARIES = ("b", "--", "x" * 70, "a.b'c", "a\tb")  # the last is cut at its tab, and its form is not whole
_ODD = ("?top=3", "?top=-1", "?top=99999999999999", "?method=x", "?target=2", "?target=%ff", "?" + "a&" * 30)


def upload(seed: int) -> Upload:
    """The upload of a number: the same for ever."""
    chance = random.Random(seed)
    kind = chance.choice(tuple(_FILES))
    path = chance.choice(("/predict", "/predict", "/predict", "/explain"))
    path += chance.choice(_ODD) if chance.random() < 0.1 else ""
    if chance.random() < 0.5:
        return Upload(kind, path, _FILES[kind](chance), chance.choice(_TYPES[:4] * 4 + _TYPES))
    boundary = chance.choice(_BOUNDARIES)
    files = [_FILES[kind](chance) for _ in range(chance.choice((0, 1, 1, 1, 2, 5, 70)) if kind != "bomb" else 1)]
    head = 'Content-Disposition: form-data; name="file"; filename="{}"\r\n\r\n'
    name = chance.choice(("a.png", "../../etc/passwd", "é" * 300, 'q\\"uote', "\0", "<script>"))
    marker = f"--{boundary}".encode()
    parts = [marker + b"\r\n" + head.format(name).encode() + file + b"\r\n" for file in files]
    body = b"".join(parts) + marker + b"--\r\n"
    if chance.random() < 0.2:  # the form itself is damaged
        body = body[: chance.randrange(len(body))] if chance.random() < 0.5 else body.replace(b"\r\n", b"\n", 2)
    return Upload(f"form of {kind}", path, body, f"multipart/form-data; boundary={boundary}")
