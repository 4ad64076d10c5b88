"""Image files that ask for more than they seem to: time, memory, or passes over the pixels. Small unless told."""

import struct
import zlib
from io import BytesIO

import numpy as np
from PIL import Image


def _saved(image: Image.Image, kind: str, **options: object) -> bytes:
    file = BytesIO()
    image.save(file, format=kind, **options)
    return file.getvalue()


def _noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def jpeg_of_many_scans(scans: int = 1000, size: tuple[int, int] = (64, 48)) -> bytes:
    """A progressive JPEG whose last scan comes again and again; each is a pass over all pixels."""
    data = _saved(Image.new("RGB", size, (90, 120, 30)), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + (scans - data.count(b"\xff\xda") + 1) * data[last:-2] + data[-2:]


def baseline_jpeg_of_many_scans(scans: int = 1000, size: tuple[int, int] = (64, 48)) -> bytes:
    """The same without a progressive header: one channel in the first scan, then the same scan again and again."""
    data = _saved(Image.new("L", size, 90), "JPEG")
    start, frame = data.index(b"\xff\xda"), data.index(b"\xff\xc0")
    three = bytes([3, 1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0])  # channels: number, sampling, table
    header = struct.pack(">HHBHH", 0xFFC0, 8 + 9, 8, size[1], size[0]) + three
    return data[:frame] + header + data[frame + 13 : start] + scans * data[start:-2] + data[-2:]


def jpeg_of_many_segments(segments: int = 20_000) -> bytes:
    """A JPEG with empty comments."""
    data = _saved(_noise(16, 16), "JPEG")
    return data[:2] + segments * b"\xff\xfe\0\2" + data[2:]


def tiff_of_a_huge_tile(side: int = 46_336, size: tuple[int, int] = (64, 64), *, compression: int = 5) -> bytes:
    """A TIFF of 234 bytes or so: the image is small, its one tile is not. Compression 5 is LZW, 1 is none."""
    shorts = {256: size[0], 257: size[1], 259: compression, 262: 2, 277: 3}  # size, compression, RGB, samples
    entries = {tag: (3, 1, struct.pack("<HH", value, 0)) for tag, value in shorts.items()}
    end = 8 + 2 + 12 * 11 + 4
    entries[258] = (3, 3, struct.pack("<I", end))  # bits of each sample, after the directory
    entries[322] = entries[323] = (4, 1, struct.pack("<I", side))
    entries[324] = (4, 1, struct.pack("<I", end + 6))
    entries[325] = (4, 1, struct.pack("<I", 64))
    entries[284] = (3, 1, struct.pack("<HH", 1, 0))
    directory = b"".join(struct.pack("<HHI", tag, *entries[tag][:2]) + entries[tag][2] for tag in sorted(entries))
    head = b"II*\0" + struct.pack("<IH", 8, len(entries)) + directory + struct.pack("<I", 0)
    return head + struct.pack("<3H", 8, 8, 8) + bytes(64)


def webp_of_one_colour(width: int = 500, height: int = 400) -> bytes:
    """A lossless WebP with transparency: about a kilobyte for 25 million pixels (5,000 x 5,000)."""
    return _saved(Image.new("RGBA", (width, height), (200, 30, 30, 128)), "WEBP", lossless=True, quality=0, method=0)


def webp_with_a_huge_canvas(width: int = 16_384, height: int = 16_000) -> bytes:
    """An animated WebP whose canvas is far larger than its frames."""
    data = _saved(Image.new("RGB", (8, 8)), "WEBP", save_all=True, append_images=[Image.new("RGB", (8, 8), "red")])
    assert data[12:16] == b"VP8X"
    return data[:24] + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little") + data[30:]


def gif_with_a_huge_frame(width: int = 60_000, height: int = 60_000) -> bytes:
    """A GIF of 8 x 8 pixels whose first frame is larger than itself."""
    data = _saved(Image.new("P", (8, 8)), "GIF")
    frame = data.index(b"\x2c", 13)
    return data[: frame + 5] + struct.pack("<HH", width, height) + data[frame + 9 :]


def png_of_zeros(width: int = 2000, height: int = 2000, *, written: int | None = None) -> bytes:
    """A whole PNG of one colour: a thousandth of what it decodes to; or one with so many bytes of pixels, no more."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    rows = zlib.compress(bytes((1 + 4 * width) * height if written is None else written), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def ppm_with_a_long_comment(length: int = 200_000) -> bytes:
    """A PPM whose header has a comment, which Pillow reads byte by byte."""
    return b"P6\n#" + length * b"x" + b"\n2 2\n255\n" + bytes(12)


def ppm_of_many_comments(comments: int = 5000) -> bytes:
    """A PPM in digits with comments between them; Pillow copies the rest of the block for each."""
    return b"P3\n64 64\n255\n" + comments * b"#\n" + 64 * 64 * b"1 2 3 "


def ppm_of_blanks(length: int = 200_000) -> bytes:
    """A PPM of one pixel in digits, and blanks."""
    return b"P3\n1 1\n255\n" + length * b" " + b"1 2 3"


def ppm_in_digits(width: int = 64, height: int = 48) -> bytes:
    """A PPM as text: valid, and slow to read."""
    return b"P3\n%d %d\n255\n" % (width, height) + width * height * b"1 2 3\n"
