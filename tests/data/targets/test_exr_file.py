"""OpenEXR files as its own library writes them, and damaged ones."""

import base64
import struct
import time
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.data.targets.exr_file import read_exr

METRES = np.float32([[0.5, 1.25, 0], [2, 60, 3.5]])
# Written by OpenEXR 3.5: the channel Z of these numbers, plain; and 8 x 12 times the same, with ZIP.
PLAIN = base64.b64decode(
    "di8xAQIAAABjaGFubmVscwBjaGxpc3QAEwAAAFoAAgAAAAAAAAABAAAAAQAAAABjb21wcmVzc2lvbgBjb21wcmVzc2lvbgABAAAAAGRhdGFXaW5kb3cA"
    "Ym94MmkAEAAAAAAAAAAAAAAAAgAAAAEAAABkaXNwbGF5V2luZG93AGJveDJpABAAAAAAAAAAAAAAAAIAAAABAAAAbGluZU9yZGVyAGxpbmVPcmRlcgAB"
    "AAAAAHBpeGVsQXNwZWN0UmF0aW8AZmxvYXQABAAAAAAAgD9zY3JlZW5XaW5kb3dDZW50ZXIAdjJmAAgAAAAAAAAAAAAAAHNjcmVlbldpbmRvd1dpZHRo"
    "AGZsb2F0AAQAAAAAAIA/dHlwZQBzdHJpbmcADQAAAHNjYW5saW5laW1hZ2UAQgEAAAAAAABWAQAAAAAAAAAAAAAMAAAAAAAAPwAAoD8AAAAAAQAAAAwA"
    "AAAAAABAAABwQgAAYEA="
)
ZIPPED = base64.b64decode(
    "di8xAQIAAABjaGFubmVscwBjaGxpc3QAEwAAAFoAAgAAAAAAAAABAAAAAQAAAABjb21wcmVzc2lvbgBjb21wcmVzc2lvbgABAAAAA2RhdGFXaW5kb3cA"
    "Ym94MmkAEAAAAAAAAAAAAAAAIwAAAA8AAABkaXNwbGF5V2luZG93AGJveDJpABAAAAAAAAAAAAAAACMAAAAPAAAAbGluZU9yZGVyAGxpbmVPcmRlcgAB"
    "AAAAAHBpeGVsQXNwZWN0UmF0aW8AZmxvYXQABAAAAAAAgD9zY3JlZW5XaW5kb3dDZW50ZXIAdjJmAAgAAAAAAAAAAAAAAHNjcmVlbldpbmRvd1dpZHRo"
    "AGZsb2F0AAQAAAAAAIA/dHlwZQBzdHJpbmcADQAAAHNjYW5saW5laW1hZ2UAOgEAAAAAAAAAAAAAcgAAAHherc1BDcAgAATBSqgElDTg7JxBqgQJSMDB"
    "ZhP4zHeepMzkhuud5Ya8eHnx8uLlxcuLlxcvL15evLx4efHy4uXFy4uXF2tvvSXnjvp/o57Li5cXLy9eXry8eHnx8uLlxcuLlxcvL15evLx4edFumrF/"
    "/Q=="
)
MOST = 10_000


def test_files_of_openexr():
    np.testing.assert_array_equal(read_exr(PLAIN, MOST), METRES)
    np.testing.assert_array_equal(read_exr(ZIPPED, MOST), np.tile(METRES, (8, 12)))


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "OpenEXR"),
        (b"not an image at all", "OpenEXR"),
        (PLAIN[:4] + b"\x02\x02\0\0" + PLAIN[8:], "tiles"),
        (PLAIN.replace(b"\x01\0\0\0\0dataWindow", b"\x01\0\0\0\x04dataWindow"), "compression"),
        (PLAIN[:-1], "damaged"),
        (PLAIN[:100], "damaged"),
        (PLAIN.replace(struct.pack("<Q", 0x142), struct.pack("<Q", (1 << 64) - 1)), "damaged"),
    ],
)
def test_what_cannot_be_read_is_refused(data, word):
    with pytest.raises(ValueError, match=word):
        read_exr(data, MOST)


def test_too_many_pixels_are_refused():
    with pytest.raises(ValueError, match="pixels"):
        read_exr(PLAIN, 5)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    whole=st.sampled_from([PLAIN, ZIPPED]),
    changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=6),
    cut=st.integers(0, 60),
)
def test_damaged_files_give_numbers_or_an_error(whole, changes, cut):
    data = bytearray(whole)
    for at, value in changes:
        data[at % len(data)] = value
    try:
        found = read_exr(bytes(data[: len(data) - cut]), MOST)
    except ValueError:
        return
    assert found.ndim == 2


def exr(channels: int, width: int, height: int, *, compression: int = 3, block: bytes = b"") -> bytes:
    """A header that claims so much; all offsets are those of one block."""
    kinds = b"".join(f"c{number}".encode() + struct.pack("<xiIii", 2, 0, 1, 1) for number in range(channels - 1))
    parts = {
        "channels": kinds + b"Z" + struct.pack("<xiIii", 2, 0, 1, 1) + b"\0",
        "compression": bytes([compression]),
        "dataWindow": struct.pack("<iiii", 0, 0, width - 1, height - 1),
    }
    head = b"".join(name.encode() + b"\0t\0" + struct.pack("<i", len(data)) + data for name, data in parts.items())
    blocks = max(0, -(-height // 16))
    start = 8 + len(head) + 1 + 8 * blocks
    offsets = struct.pack(f"<{blocks}Q", *[start] * blocks)
    return b"\x76\x2f\x31\x01\2\0\0\0" + head + b"\0" + offsets + struct.pack("<ii", 0, len(block)) + block


@pytest.mark.parametrize(
    "size", [(1, -3, -3), (1, 1, 100_000), (1, 0, 5), (2000, 4096, 4096), (30_000, 60_000, 16), (100, 50_000, 1000)]
)
def test_small_files_that_claim_much_are_refused_before_anything_is_unpacked(size):
    bomb = exr(*size, block=zlib.compress(bytes(1 << 22)))
    start = time.process_time()
    with pytest.raises(ValueError, match=r"pixels|channels|damaged"):
        read_exr(bomb, 100_000_000)
    assert time.process_time() - start < 1


def test_many_channels_of_a_usual_picture_are_read():
    lines = bytes(16 * 40 * 4 * 60)
    packed = zlib.compress(b"\0" + b"\x80" * (len(lines) - 1))
    found = read_exr(exr(60, 40, 16, block=packed), MOST)
    assert found.shape == (16, 40)
    assert not found.any()
