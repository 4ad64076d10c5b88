"""/explain: maps at the size of the upload, for any output, layer and head."""

import base64
import os
import sys
import threading
from io import BytesIO
from typing import Any

import pytest
from PIL import Image
from support.small_service import Greyness, Halves, app, form, picture, post
from torch import Tensor

from vitrail.serve.overlay import MAX_SIDE, MIN_SIDE

PNG = {"content_type": "image/png"}


def overlay(data: Any) -> Image.Image:
    return Image.open(BytesIO(base64.b64decode(data["overlay"].partition(",")[2])))


def test_an_explanation_has_the_answer_the_picture_and_the_overlay() -> None:
    data = post(app(explainer=Halves()), "/explain?target=dark", picture(255, size=(400, 300)), **PNG).data
    assert (data["method"], data["target"]) == ("halves", {"index": 0, "name": "dark"})
    assert data["answers"][0]["label"] == "bright"
    assert data["contrast"] == 1.0
    layer = overlay(data)
    assert (layer.size, layer.mode) == ((300, 300), "RGBA")
    assert layer.getpixel((0, 0)) == (240, 249, 33, 255)
    assert layer.getpixel((299, 0))[3] == 0


@pytest.mark.parametrize(
    ("uploaded", "size"), [((400, 300), 300), ((20, 10), MIN_SIDE), ((3000, 2000), MAX_SIDE), ((300, 300), 300)]
)
def test_as_png_the_map_is_blended_over_the_crop_at_the_size_of_the_upload(
    uploaded: tuple[int, int], size: int
) -> None:
    reply = post(app(explainer=Halves()), "/explain", picture(255, size=uploaded), accept="image/png", **PNG)
    assert reply.headers["content-type"] == "image/png"
    blended = Image.open(BytesIO(reply.body))
    assert (blended.size, blended.mode) == ((size, size), "RGB")
    assert blended.getpixel((0, 0)) == (244, 250, 88)  # three quarters of yellow over white
    assert blended.getpixel((size - 1, 0)) == (255, 255, 255)


def test_an_explanation_of_one_layer_and_one_head() -> None:
    halves = Halves()
    data = post(app(explainer=halves), "/explain?method=rows&head=3", picture(255), **PNG).data  # of the last layer
    assert (data["layer"], data["head"], data["targeted"]) == (None, 3, False)
    layer = overlay(data)  # 8 rows of 28 pixels
    assert [layer.getpixel((0, 28 * row + 14))[3] > 200 for row in range(8)] == [False] * 6 + [True, False]
    post(app(explainer=halves), "/explain?method=layer_alone&layer=1&target=middle", picture(255), **PNG)
    assert halves.asked == [
        {"method": "rows", "target": 2, "layer": None, "head": 3},
        {"method": "layer_alone", "target": 1, "layer": 1, "head": None},
    ]


def test_outputs_of_any_task_are_explained() -> None:
    data = post(app(Greyness(), explainer=Halves()), "/explain?target=grey", picture(), **PNG).data
    assert (data["target"], data["numbers"][0]["value"]) == ({"index": 0, "name": "grey"}, 128.0)


@pytest.mark.parametrize(
    ("path", "status", "word"),
    [
        ("/explain?method=halfs", 400, "did you mean 'halves'"),
        ("/explain?target=3", 400, "unknown target '3'"),
        ("/explain?layer=1", 400, "rows, layer_alone"),
        ("/explain?method=layer_alone&head=0", 400, "no parameter head"),
        ("/explain?method=rows&layer=3", 400, "0 to 2"),
        ("/explain?method=rows&layer=-1", 400, "'-1'"),
        ("/explain?method=rows&layer=0&head=3", 400, "0 to 1"),
        ("/explain?method=never", 501, "makes no sense"),
    ],
)
def test_explanations_that_are_refused(path: str, status: int, word: str) -> None:
    reply = post(app(explainer=Halves()), path, picture(), **PNG)
    assert reply.status == status
    assert word in reply.data["error"]


def test_explanations_in_progress_are_limited() -> None:
    reply = post(app(explainer=Halves(), max_explaining=0), "/explain", picture(), **PNG)
    assert (reply.status, "retry-after" in reply.headers) == (503, True)


def test_a_model_without_explanations() -> None:
    reply = post(app(), "/explain", picture(), **PNG)
    assert (reply.status, "cannot be explained" in reply.data["error"]) == (501, True)
    body, headers = form(picture(), picture())
    reply = post(app(explainer=Halves()), "/explain", body, **headers)
    assert (reply.status, "one image" in reply.data["error"]) == (400, True)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, threads have no priorities of their own")
def test_explanations_have_a_lower_priority() -> None:
    found: list[int] = []

    class Asked(Halves):
        def __call__(self, image: Tensor, **options: Any) -> Tensor:
            found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            return super().__call__(image, **options)

    of = app(explainer=Asked())
    assert post(of, "/explain", picture(), **PNG).status == 200
    assert found == [max(10, os.getpriority(os.PRIO_PROCESS, 0))]
