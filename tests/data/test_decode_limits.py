"""Files that ask for more than their pixels are refused before anything is allocated; ordinary ones pass."""

import io
import time

import pytest
from PIL import Image
from support import hostile_images as hostile

from vitrail.data.decode import decode, inspect
from vitrail.data.decode_limits import check_file, format_names
from vitrail.errors import BrokenImage

HOSTILE = {
    "scans": (hostile.jpeg_of_many_scans(), "scans"),
    "baseline scans": (hostile.baseline_jpeg_of_many_scans(), "scans"),
    "segments": (hostile.jpeg_of_many_segments(), "segments"),
    "tile": (hostile.tiff_of_a_huge_tile(), "tiles of 46,336 x 46,336"),
    "plain tile": (hostile.tiff_of_a_huge_tile(compression=1), "tiles"),
    "canvas": (hostile.webp_with_a_huge_canvas(), "16,384 x 16,000"),
    "frame": (hostile.gif_with_a_huge_frame(), "pixels"),
    "comment": (hostile.ppm_with_a_long_comment(), "header"),
    "comments": (hostile.ppm_of_many_comments(), "comments"),
    "blanks": (hostile.ppm_of_blanks(), "blanks"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused_at_once(case: str) -> None:
    data, word = HOSTILE[case]
    start = time.process_time()
    with pytest.raises(BrokenImage, match=rf"x\.img.*{word}"):
        decode(data, name="x.img")
    assert time.process_time() - start < 0.2


@pytest.mark.parametrize("case", ["scans", "segments", "comment", "comments"])
def test_headers_of_hostile_files_are_not_read_either(case: str) -> None:
    with pytest.raises(BrokenImage):
        inspect(HOSTILE[case][0])


def test_the_limit_on_pixels_holds_for_tiles_and_canvases() -> None:
    assert decode(hostile.webp_of_one_colour(50, 40), max_pixels=2000).shape == (3, 40, 50)
    with pytest.raises(BrokenImage, match="50 x 40"):
        decode(hostile.webp_of_one_colour(50, 40), max_pixels=1999)
    with pytest.raises(BrokenImage, match="tiles of 128 x 128"):
        decode(hostile.tiff_of_a_huge_tile(128), max_pixels=128 * 127)
    with pytest.raises(BrokenImage, match=r"damaged"):  # a tile that is allowed, of a file that ends early
        decode(hostile.tiff_of_a_huge_tile(128), max_pixels=128 * 128)


def test_ordinary_files_are_within_the_limits() -> None:
    picture = Image.effect_noise((96, 64), 60).convert("RGB")
    for kind, options in (
        ("JPEG", {"progressive": True}),
        ("JPEG", {"quality": 100, "comment": b"\xff\xda" * 500}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"quality": 50}),
        ("PPM", {}),
    ):
        file = io.BytesIO()
        picture.save(file, kind, **options)
        for appended in (b"", 500 * b"\xff\xda\0\2"):  # such as the film after a photo
            assert decode(file.getvalue() + appended).shape == (3, 64, 96), kind
    assert decode(hostile.ppm_in_digits(), name="digits").shape == (3, 48, 64)
    check_file(b"P5\n# a comment\n# another\n3 2\n255\n" + bytes(6), "x", 10**6)
    check_file(b"RIFF\0\0\0\0WEBPVP8 ", "x", 10**6)  # Pillow says that it is truncated


def test_formats_can_be_limited() -> None:
    formats = ("PNG", "JPEG", "WEBP")
    assert format_names(formats) == "PNG, JPEG or WebP"
    assert format_names(("PNG",)) == "PNG"
    for data in (hostile.ppm_in_digits(), hostile.tiff_of_a_huge_tile(64)):
        with pytest.raises(BrokenImage, match="not a PNG, JPEG or WebP"):
            decode(data, formats=formats)
    with pytest.raises(BrokenImage, match="not a PNG"):
        decode(hostile.jpeg_of_many_scans(5), formats=("PNG",))
