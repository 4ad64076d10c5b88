"""Decoding: every kind of file gives the pixels that a person would see, and every broken one a sentence."""

import io
import struct
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data import decode_pixels as module
from vitrail.data.decode import decode, inspect
from vitrail.errors import BrokenImage

RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (6, 9, 3), dtype=np.uint8)
GREY = RNG.integers(0, 256, (6, 9), dtype=np.uint8)


def smooth(height=40, width=56) -> np.ndarray:
    """A picture that JPEG keeps well."""
    y, x = np.mgrid[:height, :width]
    return np.stack([4 * x, 6 * y, 2 * (x + y)], axis=2).clip(0, 255).astype(np.uint8)


def saved(image: np.ndarray | Image.Image, kind: str = "PNG", **options) -> bytes:
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def chw(image: np.ndarray) -> torch.Tensor:
    return torch.tensor(image)[None] if image.ndim == 2 else torch.tensor(image).permute(2, 0, 1)


@pytest.mark.parametrize(
    ("kind", "options"), [("PNG", {}), ("WEBP", {"lossless": True}), ("BMP", {}), ("TIFF", {}), ("PPM", {})]
)
def test_lossless_formats_give_the_pixels(kind, options):
    pixels = decode(saved(COLOUR, kind, **options))
    assert pixels.dtype == torch.uint8
    assert pixels.is_contiguous()
    assert torch.equal(pixels, chw(COLOUR))


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_grey_stays_grey(kind):
    assert torch.equal(decode(saved(GREY, kind)), chw(GREY))


def test_channels_on_request():
    assert torch.equal(decode(saved(GREY), channels=3), chw(GREY).expand(3, -1, -1))
    expected = np.asarray(Image.fromarray(COLOUR).convert("L"))
    assert torch.equal(decode(saved(COLOUR), channels=1), chw(expected))


def test_palette_and_one_bit():
    palette = Image.fromarray(COLOUR).quantize(8)
    assert torch.equal(decode(saved(palette)), chw(np.asarray(palette.convert("RGB"))))
    bits = Image.fromarray(GREY > 128)
    assert torch.equal(decode(saved(bits)), chw(np.where(GREY > 128, 255, 0).astype(np.uint8)))


def test_transparency_is_laid_over_white():
    # red at alpha 0, 102 (two fifths) and 255
    layers = np.array([[[200, 0, 50, 0], [200, 0, 50, 102], [200, 0, 50, 255]]], dtype=np.uint8)
    expected = np.array([[[255, 255, 255], [233, 153, 173], [200, 0, 50]]], dtype=np.uint8)
    assert torch.equal(decode(saved(layers)), chw(expected))
    grey = np.array([[[100, 0], [100, 102], [100, 255]]], dtype=np.uint8)
    assert decode(saved(Image.fromarray(grey, "LA"))).tolist() == [[[255, 193, 100]]]


@pytest.mark.parametrize("transparency", [0, bytes([0, 128, 255])])
def test_palette_with_transparency(transparency):
    image = Image.new("P", (3, 1))
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    image.putdata([0, 1, 2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pixels = decode(saved(image, transparency=transparency))
    middle = [40, 50, 60] if transparency == 0 else [147, 152, 157]
    assert pixels.permute(1, 2, 0).tolist() == [[[255, 255, 255], middle, [70, 80, 90]]]


def test_grey_with_a_transparent_value():
    data = saved(np.array([[0, 7, 200]], dtype=np.uint8), transparency=7)
    assert decode(data).tolist() == [[[0, 255, 200]]]


def test_sixteen_bits_are_scaled_not_clipped():
    deep = np.array([[0, 257, 32896, 65535, 300]], dtype=np.uint16)
    expected = [[[0, 1, 128, 255, 1]]]
    assert decode(saved(deep)).tolist() == expected
    assert decode(saved(deep, "TIFF")).tolist() == expected
    assert inspect(saved(deep)).deep


def deep_colour_png() -> bytes:
    """2 x 1 RGB with 16 bits a channel, which Pillow cannot write."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0)
    row = b"\0" + struct.pack(">6H", 65535, 32768, 0, 256, 512, 65535)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row)) + chunk(b"IEND", b"")


def test_sixteen_bit_colour():
    assert decode(deep_colour_png()).permute(1, 2, 0).tolist() == [[[255, 128, 0], [1, 2, 255]]]
    assert inspect(deep_colour_png()).deep


def test_numbers_without_a_range_are_refused():
    data = saved(Image.fromarray(np.array([[0.5, 1e6]], dtype=np.float32)), "TIFF")
    with pytest.raises(BrokenImage, match=r"x.tif.*32-bit"):
        decode(data, name="x.tif")


def test_cmyk_as_adobe_writes_it():
    # Pillow writes the inverted inks and the Adobe marker, like Photoshop
    red = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    data = saved(red, "JPEG", quality=100)
    assert b"Adobe" in data
    assert inspect(data).kind == "CMYK"
    assert (decode(data).permute(1, 2, 0).int() - torch.tensor([255, 0, 0])).abs().max() <= 3
    assert (decode(saved(red, "TIFF")).permute(1, 2, 0).int() - torch.tensor([255, 0, 0])).abs().max() == 0


ORIENTED = {  # EXIF orientation -> the picture as stored, for one that should be seen as `smooth()`
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, 1),
    7: lambda a: np.rot90(a, 2).swapaxes(0, 1),
    8: lambda a: np.rot90(a, -1),
}


@pytest.mark.parametrize("orientation", ORIENTED)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_rotation(orientation, kind):
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = np.ascontiguousarray(ORIENTED[orientation](smooth()))
    pixels = decode(saved(stored, kind, exif=exif, quality=100))
    assert pixels.shape == (3, 40, 56)
    assert (pixels.int() - chw(smooth()).int()).abs().float().mean() < 3


def test_first_frame_of_an_animation():
    frames = [Image.new("RGB", (8, 8), colour) for colour in ((250, 0, 0), (0, 250, 0), (0, 0, 250))]
    for kind, options in (("GIF", {}), ("WEBP", {"lossless": True}), ("PNG", {})):
        data = saved(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        assert decode(data)[:, 0, 0].tolist() == [250, 0, 0], kind


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("channels", [None, 1, 3])
@pytest.mark.parametrize("subsampling", [0, 2])
def test_simplejpeg_agrees_with_pillow(monkeypatch, mode, channels, subsampling):
    pytest.importorskip("simplejpeg")
    exif = Image.Exif()
    exif[0x0112] = 1
    noisy = (smooth().astype(int) + RNG.integers(-20, 20, (40, 56, 3))).clip(0, 255).astype(np.uint8)
    data = saved(Image.fromarray(noisy).convert(mode), "JPEG", quality=90, exif=exif, subsampling=subsampling)
    assert module._decode_plain_jpeg(data, channels, 10**6) is not None
    fast = decode(data, channels=channels)
    monkeypatch.setattr(module, "_simplejpeg", lambda: None)
    slow = decode(data, channels=channels)
    assert fast.shape == slow.shape
    assert (fast.int() - slow.int()).abs().float().mean() < 0.5
    assert (fast.int() - slow.int()).abs().max() <= 4


def test_jpegs_that_are_not_plain_go_to_pillow():
    assert module._decode_plain_jpeg(saved(smooth(), "JPEG", progressive=True), None, 10**6) is None
    assert module._decode_plain_jpeg(saved(Image.new("CMYK", (8, 8)), "JPEG"), None, 10**6) is None
    assert module._decode_plain_jpeg(saved(smooth(), "JPEG")[:-200], None, 10**6) is None
    assert module._decode_plain_jpeg(saved(smooth(), "JPEG"), None, 100) is None


def huge_png(side: int) -> bytes:
    """The header of a PNG that would take gigabytes."""
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = struct.pack(">I", 13) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    return b"\x89PNG\r\n\x1a\n" + body + struct.pack(">I", 9) + b"IDAT" + b"\0" * 13


BROKEN = {
    "empty": (b"", "the file is empty"),
    "html": (b"\n<!DOCTYPE html><html><body>404</body></html>", "it is an HTML page"),
    "text": (b"these are not the bytes that you are looking for", "not a JPEG, PNG"),
    "short": (b"\x89PN", "it is truncated"),
    "huge": (huge_png(30_000), "pixels"),
    "large": (huge_png(11_000), "11,000 x 11,000 pixels.*100,000,000"),
    "png": (saved(COLOUR)[:-30], "damaged or truncated"),
    "jpeg": (saved(smooth(), "JPEG")[:-300], "damaged or truncated"),
    "webp": (saved(smooth(), "WEBP")[:-30], "truncated|damaged"),
    "bmp": (saved(smooth(), "BMP")[:-300], "damaged or truncated"),
    "tiff": (saved(smooth(), "TIFF")[:3000], "damaged or truncated"),
    "header": (saved(smooth(), "JPEG")[:60], "damaged or truncated"),
    "heic": (b"\0\0\0\x18ftypheic" + b"\0" * 50, "HEIC or AVIF"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_get_one_sentence(case):
    data, reason = BROKEN[case]
    with pytest.raises(BrokenImage, match=rf"cats/1\.jpg.*({reason})") as caught:
        decode(data, name="cats/1.jpg")
    assert "\n" not in str(caught.value)


def test_random_damage_never_escapes():
    whole = [saved(smooth(), kind) for kind in ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF")]
    for number in range(120):
        data = bytearray(whole[number % len(whole)])
        for at in RNG.integers(0, len(data), 8):
            data[at] = RNG.integers(0, 256)
        try:
            assert decode(bytes(data)).ndim == 3
        except BrokenImage as error:
            assert "cannot be decoded" in str(error)


def test_pillow_is_silent_in_threads_and_filters_come_back():
    image = Image.new("P", (3, 1))
    image.putpalette([10, 20, 30] * 3)
    data = saved(image, transparency=bytes([0, 128, 255]))
    before = list(warnings.filters)
    with ThreadPoolExecutor(4) as pool:
        shapes = list(pool.map(lambda _: decode(data).shape, range(40)))
    assert set(shapes) == {(3, 1, 3)}
    assert warnings.filters == before


def test_inspect_reads_the_header():
    header = inspect(saved(np.zeros((4, 7, 4), dtype=np.uint8)))
    assert header == ("PNG", 7, 4, "colour", True, False)
    assert inspect(saved(GREY, "JPEG"))[:4] == ("JPEG", 9, 6, "grey")
