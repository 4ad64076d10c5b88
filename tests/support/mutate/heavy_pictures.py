"""Image files that cost a decoder far more time or memory than their size suggests."""

import struct
import zlib
from functools import cache
from io import BytesIO

from PIL import Image

from support.mutate.pictures import jpeg_joined, jpeg_segments, png_joined
from support.mutate.raw import Chance


@cache
def many_scans(scans: int) -> bytes:
    """A progressive JPEG of 1,024 x 1,024 pixels whose last refinement occurs so many times."""
    file = BytesIO()
    Image.new("L", (1024, 1024)).save(file, "JPEG", progressive=True)
    segments = jpeg_segments(file.getvalue())
    return jpeg_joined([*segments, *segments[-1:] * scans])


def tiles(side: int, *, image: int = 64) -> bytes:
    """A TIFF of a few hundred bytes whose only tile is far larger than its image."""
    size, tile = {256: image, 257: image}, {322: side, 323: side, 324: 8, 325: 100}
    tags = {**size, 258: 8, 259: 8, 262: 1, 277: 1, **tile}
    table = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", tag, 4, 1, held) for tag, held in tags.items())
    return b"II*\0" + struct.pack("<I", 108) + zlib.compress(bytes(90_000)).ljust(100, b"\0")[:100] + table + bytes(4)


@cache
def flat_png(side: int) -> bytes:
    """A square of transparent pixels, 1,000 times smaller than they are in memory."""
    packer, row = zlib.compressobj(1), bytes(4 * side + 1)
    pixels = b"".join([*(packer.compress(row) for _ in range(side)), packer.flush()])
    header = struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0)
    return png_joined([(b"IHDR", header), (b"IDAT", pixels), (b"IEND", b"")])


@cache
def flat_webp(side: int) -> bytes:
    """The same in about a kilobyte."""
    file = BytesIO()
    Image.new("RGBA", (side, side)).save(file, "WEBP", lossless=True, method=0)
    return file.getvalue()


@cache
def long_gif(frames: int) -> bytes:
    """An animation."""
    file, frame = BytesIO(), Image.new("P", (2_000, 2_000))
    frame.save(file, "GIF", save_all=True, append_images=[frame.copy()] * frames, optimize=False)
    return file.getvalue()


def spelled_ppm(kind: bytes) -> bytes:
    """Numbers as text, after a comment of megabytes."""
    return kind + b"\n#" + b"#" * 4_000_000 + b"\n2000 2000 255\n" + b"1 " * 2_000_000


def heavy(chance: Chance) -> bytes:
    """One of all of these."""
    match chance.randrange(6):
        case 0:
            return many_scans(chance.choice((500, 5_000, 40_000)))
        case 1:
            return tiles(chance.choice((5_000, 16_384, 46_336, 65_535)))
        case 2:
            return flat_png(chance.choice((4_999, 5_001)))
        case 3:
            return flat_webp(4_999)
        case 4:
            return long_gif(30)
        case _:
            return spelled_ppm(chance.choice((b"P3", b"P2")))
