"""Mutants of image files that keep enough structure to get deep into a decoder: segments, chunks, blocks and tags."""

import struct
import zlib
from collections.abc import Callable
from functools import cache
from io import BytesIO

import numpy as np
from PIL import Image

from support.mutate.raw import Chance, damaged, flip, number, rearranged, spliced

SOI, SOS, EOI = b"\xff\xd8", 0xDA, b"\xff\xd9"
PNG = b"\x89PNG\r\n\x1a\n"
SIDES = (0, 1, 2, 16, 255, 256, 4_999, 5_001, 16_384, 46_336, 65_535)


@cache
def originals() -> dict[str, tuple[bytes, ...]]:
    """Valid files of every format, in the variants that decoders treat differently."""
    pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 4), dtype=np.uint8)
    rgba, rgb, grey = Image.fromarray(pixels), Image.fromarray(pixels[..., :3]), Image.fromarray(pixels[..., 0])
    deep = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
    palette, exif = rgb.quantize(16), Image.Exif()
    exif[0x0112] = 6
    more = [rgb.rotate(90 * turn) for turn in (1, 2)]
    frames = {"save_all": True, "append_images": more, "duration": 20}

    def saved(image: Image.Image, kind: str, **options: object) -> bytes:
        file = BytesIO()
        image.save(file, format=kind, **options)
        return file.getvalue()

    return {
        "jpeg": (
            saved(rgb, "JPEG", exif=exif),
            saved(grey, "JPEG"),
            saved(rgb, "JPEG", progressive=True, quality=90),
            saved(rgb.convert("CMYK"), "JPEG"),
            saved(rgb, "JPEG", restart_marker_blocks=1, subsampling=2, icc_profile=b"x" * 200),
        ),
        "png": (
            saved(rgb, "PNG"),
            saved(rgba, "PNG"),
            saved(deep, "PNG"),
            saved(palette, "PNG", transparency=3),
            saved(grey.convert("1"), "PNG"),
            saved(rgb, "PNG", **frames),
        ),
        "webp": (
            saved(rgb, "WEBP", exif=exif),
            saved(rgba, "WEBP", lossless=True),
            saved(rgba, "WEBP", quality=20),
            saved(rgb, "WEBP", **frames),
        ),
        "gif": (saved(palette, "GIF"), saved(rgb, "GIF", **frames, loop=0), saved(palette, "GIF", interlace=1)),
        "bmp": (saved(rgb, "BMP"), saved(palette, "BMP"), saved(grey.convert("1"), "BMP"), saved(rgba, "BMP")),
        "tiff": (
            saved(rgb, "TIFF"),
            saved(grey, "TIFF", compression="tiff_lzw"),
            saved(rgb, "TIFF", compression="tiff_deflate"),
            saved(deep, "TIFF", compression="packbits"),
            saved(rgb, "TIFF", compression="jpeg"),
            saved(grey.convert("1"), "TIFF", compression="group4"),
            saved(rgba, "TIFF", **frames),
        ),
        "ppm": (saved(rgb, "PPM"), saved(grey, "PPM"), b"P3 2 1 255 1 2 3 4 5 6\n", b"P1 2 2 0 1 1 0\n"),
    }


# --- JPEG: segments --------------------------------------------------------------------------------------------------


def jpeg_segments(data: bytes) -> list[tuple[int, bytes]]:
    """Markers with their payloads; the coded pixels belong to the payload of their scan."""
    found, at = [], 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker, size = data[at + 1], struct.unpack_from(">H", data, at + 2)[0]
        stop = at + 2 + size
        if marker == SOS:
            while stop + 1 < len(data) and not (data[stop] == 0xFF and data[stop + 1] not in (0, *range(0xD0, 0xD8))):
                stop += 1
        found.append((marker, data[at + 4 : stop]))
        at = stop
    return found


def jpeg_joined(segments: list[tuple[int, bytes]], lengths: dict[int, int] | None = None) -> bytes:
    """A file of segments, with right lengths but for those given."""
    parts = [SOI]
    for at, (marker, payload) in enumerate(segments):
        head = 1 + 2 * payload[0] + 3 if marker == SOS and payload else len(payload)
        size = (lengths or {}).get(at, min(head, len(payload)) + 2) & 0xFFFF
        parts.append(struct.pack(">BBH", 0xFF, marker, size) + payload)
    return b"".join([*parts, EOI])


def jpeg(data: bytes, chance: Chance) -> bytes:
    """Frame sizes, tables, scans and metadata that contradict one another."""
    segments = jpeg_segments(data)
    if not segments:
        return damaged(data, chance)
    lengths: dict[int, int] = {}
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(segments))
        marker, payload = segments[at]
        match chance.randrange(7):
            case 0:
                segments[at] = (
                    chance.choice((0xC0, 0xC1, 0xC2, 0xC3, 0xC4, 0xC9, 0xDA, 0xDB, 0xDD, 0xE1, 0xFE)),
                    payload,
                )
            case 1:
                lengths[at] = number(chance, 16)
            case 2:
                segments[at:at] = [segments[at]] * chance.choice((1, 3, 60))
            case 3 if len(segments) > 1:
                del segments[at]
            case 4:
                frames = [n for n, (one, _) in enumerate(segments) if 0xC0 <= one <= 0xC3]
                if frames:
                    segments[frames[0]] = (segments[frames[0]][0], _frame(segments[frames[0]][1], chance))
            case _:
                segments[at] = (marker, flip(payload, chance))
    return jpeg_joined(segments, lengths)


def _frame(payload: bytes, chance: Chance) -> bytes:
    """Another precision, size, number of channels or sampling."""
    body = bytearray(payload)
    match chance.randrange(3):
        case 0 if len(body) >= 5:
            struct.pack_into(">HH", body, 1, chance.choice(SIDES), chance.choice(SIDES))
        case 1 if body:
            body[chance.choice((0, 5)) % len(body)] = number(chance, 8)
        case _ if len(body) > 7:
            body[7] = chance.choice((0, 0x11, 0x44, 0xFF, 0x14))
    return bytes(body)


# --- PNG and WebP: chunks --------------------------------------------------------------------------------------------


def png_chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    """Kinds with their contents."""
    found, at = [], len(PNG)
    while at + 8 <= len(data):
        size = struct.unpack_from(">I", data, at)[0]
        found.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + size]))
        at += 12 + size
    return found


def png_joined(chunks: list[tuple[bytes, bytes]], sizes: dict[int, int] | None = None) -> bytes:
    """A file of chunks; every checksum is right, and every size but those given."""
    parts = [PNG]
    for at, (kind, data) in enumerate(chunks):
        size = (sizes or {}).get(at, len(data))
        parts.append(struct.pack(">I", size) + kind + data + struct.pack(">I", zlib.crc32(kind + data)))
    return b"".join(parts)


PNG_KINDS = (
    b"IHDR",
    b"PLTE",
    b"IDAT",
    b"IEND",
    b"tRNS",
    b"iCCP",
    b"zTXt",
    b"iTXt",
    b"eXIf",
    b"acTL",
    b"fcTL",
    b"fdAT",
    b"pHYs",
    b"abcd",
)


def png(data: bytes, chance: Chance) -> bytes:
    """Headers, palettes and compressed pixels that do not fit each other."""
    chunks, sizes = png_chunks(data), {}
    if not chunks:
        return damaged(data, chance)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(chunks))
        kind, content = chunks[at]
        match chance.randrange(7):
            case 0:
                chunks[0] = (b"IHDR", _png_header(chunks[0][1], chance))
            case 1:
                sizes[at] = number(chance, 32)
            case 2:
                chunks[at:at] = [chunks[at]] * chance.choice((1, 2, 30))
            case 3:
                chunks.insert(at, (chance.choice(PNG_KINDS), chance.randbytes(chance.choice((0, 1, 13, 26, 300)))))
            case 4:
                body = zlib.compress(chance.choice((b"", bytes(1 << 20), chance.randbytes(3_000))))
                chunks[at] = (kind, body) if kind == b"IDAT" else (b"zTXt", b"a\0\0" + body)
            case 5 if len(chunks) > 1:
                del chunks[at]
            case _:
                chunks[at] = (kind, flip(content, chance))
    return png_joined(chunks, sizes)


def _png_header(content: bytes, chance: Chance) -> bytes:
    fields = bytearray(content.ljust(13, b"\0"))
    if chance.random() < 0.5:
        struct.pack_into(">II", fields, 0, chance.choice((*SIDES, 2**31 - 1, 2**32 - 1)), chance.choice(SIDES))
    else:
        fields[chance.randrange(8, 13)] = chance.choice((0, 1, 2, 3, 4, 6, 8, 16, 255))
    return bytes(fields)


def riff_chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    """Chunks of a WebP file."""
    found, at = [], 12
    while at + 8 <= len(data):
        size = struct.unpack_from("<I", data, at + 4)[0]
        found.append((data[at : at + 4], data[at + 8 : at + 8 + size]))
        at += 8 + size + (size & 1)
    return found


def riff_joined(
    chunks: list[tuple[bytes, bytes]], sizes: dict[int, int] | None = None, whole: int | None = None
) -> bytes:
    """A WebP file of chunks."""
    body = b"WEBP"
    for at, (kind, data) in enumerate(chunks):
        body += kind + struct.pack("<I", (sizes or {}).get(at, len(data))) + data + b"\0" * (len(data) & 1)
    return b"RIFF" + struct.pack("<I", len(body) if whole is None else whole) + body


def webp(data: bytes, chance: Chance) -> bytes:
    """Canvas, frames, alpha and pixels that do not fit each other."""
    chunks, sizes, whole = riff_chunks(data), {}, None
    if not chunks:
        return damaged(data, chance)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(chunks))
        kind, content = chunks[at]
        match chance.randrange(7):
            case 0:
                canvas = struct.pack("<I", chance.randrange(256)) + chance.randbytes(6)
                chunks[: chunks[0][0] == b"VP8X"] = [(b"VP8X", canvas)]
            case 1:
                sizes[at] = number(chance, 32)
            case 2:
                chunks[at:at] = [chunks[at]] * chance.choice((1, 2, 30))
            case 3:
                chunks.insert(
                    at, (chance.choice((b"ALPH", b"ANIM", b"ANMF", b"EXIF", b"ICCP", b"VP8L")), chance.randbytes(24))
                )
            case 4:
                whole = number(chance, 32)
            case 5 if len(content) >= 10:  # the sizes in the head of VP8 and VP8L
                chunks[at] = (kind, content[:1] + flip(content[1:10], chance) + content[10:])
            case _:
                chunks[at] = (kind, flip(content, chance))
    return riff_joined(chunks, sizes, whole)


# --- GIF, BMP, TIFF: blocks, headers and tags ------------------------------------------------------------------------


def gif(data: bytes, chance: Chance) -> bytes:
    """Screens, frames, palettes and codes that contradict one another."""
    if len(data) < 20:
        return damaged(data, chance)
    changed = bytearray(data)
    frame = data.find(b"\x2c", 13)
    match chance.randrange(6):
        case 0:
            struct.pack_into("<HH", changed, 6, chance.choice(SIDES), chance.choice(SIDES))
        case 1:
            changed[10] = chance.randrange(256)  # which palette follows
        case 2 if 0 < frame < len(data) - 10:
            struct.pack_into("<HHHH", changed, frame + 1, *(chance.choice(SIDES) for _ in range(4)))
        case 3 if 0 < frame < len(data) - 11:
            changed[frame + 9] = chance.randrange(256)
            changed[frame + 10] = number(chance, 8)  # bits of the first code
        case 4:
            extension = b"\x21" + bytes([chance.choice((0xF9, 0xFE, 0xFF, 0x01))]) + chance.randbytes(20)
            changed[max(frame, 13) : max(frame, 13)] = extension * chance.choice((1, 50))
        case _:
            return b"".join(rearranged([data[at : at + 16] for at in range(0, len(data), 16)], chance))
    return bytes(changed)


def bmp(data: bytes, chance: Chance) -> bytes:
    """Fields of the header."""
    changed = bytearray(data.ljust(60, b"\0"))
    for _ in range(chance.randint(1, 3)):
        at, size = chance.choice(
            ((10, 4), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2), (30, 4), (34, 4), (46, 4), (50, 4))
        )
        chosen = chance.choice((*SIDES, 1, 4, 8, 24, 32, -1, number(chance, 8 * size), 12, 40, 124))
        changed[at : at + size] = (chosen & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    return bytes(changed) if chance.random() < 0.8 else damaged(bytes(changed), chance)


TAGS = (
    254,
    256,
    257,
    258,
    259,
    262,
    266,
    273,
    274,
    277,
    278,
    279,
    284,
    317,
    320,
    322,
    323,
    324,
    325,
    330,
    338,
    339,
    347,
    700,
    34675,
)
COMPRESSIONS = (1, 2, 3, 4, 5, 6, 7, 8, 32773, 32946, 34712, 34887, 34925, 50000, 50001)


def tiff(data: bytes, chance: Chance) -> bytes:
    """Entries of the first directory: tiles, strips, types and counts."""
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    if order is None or len(data) < 16:
        return damaged(data, chance)
    start = struct.unpack_from(order + "I", data, 4)[0]
    try:
        count = struct.unpack_from(order + "H", data, start)[0]
        entries = [list(struct.unpack_from(order + "HHII", data, start + 2 + 12 * n)) for n in range(count)]
    except struct.error:
        return damaged(data, chance)
    for _ in range(chance.randint(1, 4)):
        entry = chance.choice(entries) if entries and chance.random() < 0.7 else [chance.choice(TAGS), 4, 1, 0]
        if entry not in entries:
            entries.append(entry)
        field = chance.choice((1, 2, 3, 3, 3))
        sensible = {256: SIDES, 257: SIDES, 322: SIDES, 323: SIDES, 278: SIDES, 259: COMPRESSIONS, 258: (1, 8, 16, 32)}
        options = sensible.get(entry[0], ()) if field == 3 else ()
        entry[field] = (
            chance.choice(options) if options and chance.random() < 0.8 else number(chance, 16 if field == 1 else 32)
        )
    entries.sort()
    body = b"".join(struct.pack(order + "HHII", *entry) for entry in entries)
    following = chance.choice((0, 0, 0, len(data), number(chance, 32)))  # a directory that comes after itself
    table = struct.pack(order + "H", len(entries)) + body + struct.pack(order + "I", following)
    return data[:4] + struct.pack(order + "I", len(data)) + data[8:] + table


FORMATS: dict[str, Callable[[bytes, Chance], bytes]] = {
    "jpeg": jpeg,
    "png": png,
    "webp": webp,
    "gif": gif,
    "bmp": bmp,
    "tiff": tiff,
    "ppm": damaged,
}


def picture(chance: Chance, kind: str | None = None) -> bytes:
    """A file of a format: mutated most of the time, whole, or one format's start with another's end."""
    kind = kind or chance.choice(tuple(FORMATS))
    data = chance.choice(originals()[kind])
    roll = chance.random()
    if roll < 0.08:
        return data
    if roll < 0.16:
        return damaged(data, chance)
    if roll < 0.2:
        return spliced(data, chance.choice(originals()[chance.choice(tuple(FORMATS))]), chance)
    return FORMATS[kind](data, chance)
