"""/predict: what it answers, and which uploads it refuses."""

import base64
import re
from io import BytesIO

import pytest
import torch
from PIL import Image
from support import hostile_images as hostile
from support.hostile_images import png_of_zeros
from support.small_service import Greyness, app, form, picture, post

PNG = {"content_type": "image/png"}


def test_one_picture_as_the_body() -> None:
    reply = post(app(), "/predict?top=2", picture(250), **PNG)
    assert reply.status == 200
    (found,) = reply.data["predictions"]
    assert [answer["label"] for answer in found["answers"]] == ["bright", "middle"]
    assert found["answers"][0]["chosen"]
    assert not found["answers"][1]["chosen"]
    expected = (-torch.tensor([250.0, 122.5, 5.0]) / 20).softmax(dim=0)  # by hand: distances to 0, 127.5 and 255
    assert found["answers"][0]["probability"] == pytest.approx(float(expected[2]), abs=1e-5)
    assert found["batch"] == 1
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert re.fullmatch(r"[0-9a-f]{16}", reply.headers["x-request-id"])


def test_several_files_of_a_form_and_a_broken_one_among_them() -> None:
    body, headers = form(picture(0), b"no picture", picture(255))
    reply = post(app(), "/predict", body, **headers)
    assert reply.status == 200
    first, broken, last = reply.data["predictions"]
    assert (first["name"], first["answers"][0]["label"]) == ("0.png", "dark")
    assert "1.png cannot be decoded" in broken["error"]
    assert last["answers"][0]["label"] == "bright"


def test_names_of_files_are_cleaned() -> None:
    body, headers = form(picture())
    body = body.replace(b"0.png", b"C:\\\\photos\\\\\x00me<b>.png")
    (found,) = post(app(), "/predict", body, **headers).data["predictions"]
    assert found["name"] == "me<b>.png"


@pytest.mark.parametrize(
    ("body", "headers", "status", "word"),
    [
        (b"", PNG, 422, "empty"),
        (b"<html>", PNG, 422, "HTML"),
        (picture()[:40], PNG, 422, "decoded"),
        (hostile.ppm_in_digits(), PNG, 422, "JPEG, PNG, WebP, BMP, GIF or TIFF"),
        (hostile.ppm_with_a_long_comment(), PNG, 422, "not a JPEG"),
        (hostile.jpeg_of_many_scans(), PNG, 422, "scans"),
        (hostile.tiff_of_a_huge_tile(), PNG, 422, "tiles"),
        (png_of_zeros(60_000, 60_000, written=9999), PNG, 422, "pixels"),
        (png_of_zeros(6_000, 6_000, written=9999), PNG, 422, "25,000,000"),
        (picture(), {"content_type": "text/plain"}, 415, "unsupported Content-Type (text/plain)"),
        (picture(), {}, 415, "missing"),
        (b"x", {"content_type": "multipart/form-data"}, 400, "no boundary"),
        (b"--b\r\n\r\nx", {"content_type": "multipart/form-data; boundary=b"}, 400, "last boundary"),
        (b"--b--", {"content_type": "multipart/form-data; boundary=b"}, 400, "no file"),
        (b"--b\r\nX: y\r\n--b--", {"content_type": "multipart/form-data; boundary=b"}, 400, "no headers"),
    ],
)  # fmt: skip
def test_bad_uploads_are_refused(body: bytes, headers: dict[str, str], status: int, word: str) -> None:
    reply = post(app(), "/predict", body, **headers)
    assert reply.status == status
    assert word in reply.data["error"]


def test_a_picture_of_one_row_and_grey_with_transparency() -> None:
    long = post(app(), "/predict", picture(255, size=(4000, 1)), **PNG)
    assert long.data["predictions"][0]["answers"][0]["label"] == "bright"
    file = BytesIO()
    Image.new("LA", (9, 9), (0, 0)).save(file, "PNG")
    clear = post(app(), "/predict", file.getvalue(), **PNG)
    assert clear.data["predictions"][0]["answers"][0]["label"] == "bright"  # laid over white


@pytest.mark.parametrize("top", ["0", "-1", "x", "", "1" * 30, "²"])
def test_top_must_be_a_positive_number(top: str) -> None:
    reply = post(app(), f"/predict?top={top}", picture(), **PNG)
    assert (reply.status, "top" in reply.data["error"]) == (400, True)


def test_any_task_is_served_and_shown() -> None:
    of = app(Greyness())
    (found,) = post(of, "/predict?display=1", picture(200), **PNG).data["predictions"]
    assert found["numbers"] == [{"name": "grey", "value": 200.0, "low": 190.0, "high": 210.0}]
    shown = found["display"]
    assert shown["text"] == "grey 200.0"
    (bar,) = shown["bars"]
    assert (bar["label"], bar["chosen"], bar["low"] < bar["share"] < bar["high"]) == ("grey", True, True)
    drawing = Image.open(BytesIO(base64.b64decode(shown["drawing"].partition(",")[2])))
    assert drawing.getpixel((0, 0)) == (55, 55, 55)
    (plain,) = post(app(), "/predict?display=1", picture(200), **PNG).data["predictions"]
    assert plain["display"]["drawing"] is None
    (without,) = post(of, "/predict", picture(200), **PNG).data["predictions"]
    assert "display" not in without


def test_numbers_that_are_not_finite_are_an_error() -> None:
    engine = Greyness()
    of = app(engine)
    engine.of_means = lambda means: {"numbers": means[:, None] * float("nan")}
    assert post(of, "/predict", picture(), **PNG).status == 500
