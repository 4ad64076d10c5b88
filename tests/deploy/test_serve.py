"""The service's answers: what it says of pictures, what it refuses and why, and how it batches."""

import asyncio
import base64
import json
import re
from io import BytesIO

import pytest
import torch
from abusive_uploads import bomb
from PIL import Image
from small_service import Brightness, Halves, Held, Reply, app, ask, form, picture, post, until

from vitrail.deploy.engine import Array
from vitrail.deploy.serve_app import App
from vitrail.deploy.serve_config import ServeConfig
from vitrail.deploy.serve_metrics import Metrics
from vitrail.deploy.serve_model import Question, Served, Slot
from vitrail.errors import ConfigError

PNG = {"content_type": "image/png"}


# --- predict ---------------------------------------------------------------------------------------------------------


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


def test_chunks_of_any_size_are_put_together() -> None:
    body, headers = form(picture(0))
    assert asyncio.run(ask(app(), "/predict", method="POST", body=body, chunk=7, **headers)).status == 200


def test_names_of_files_are_cleaned() -> None:
    body, headers = form(picture())
    body = body.replace(b"0.png", b"C:\\\\photos\\\\\x00me<b>.png")
    (found,) = post(app(), "/predict", body, **headers).data["predictions"]
    assert found["name"] == "me<b>.png"


@pytest.mark.parametrize(
    ("body", "headers", "status", "sentence"),
    [
        (b"", PNG, 422, "the file is empty"),
        (b"<html>", PNG, 422, "it is an HTML page"),
        (picture()[:40], PNG, 422, "cannot be decoded"),
        (bomb(60_000, 60_000), PNG, 422, "more than the .* allowed"),
        (bomb(6_000, 6_000), PNG, 422, "6,000 x 6,000 pixels, more than the 25,000,000 allowed"),
        (picture(), {"content_type": "text/plain"}, 415, "text/plain is no way to send pictures"),
        (picture(), {}, 415, "nothing is no way"),
        (b"x", {"content_type": "multipart/form-data"}, 400, "names no boundary"),
        (b"--b\r\n\r\nx", {"content_type": "multipart/form-data; boundary=b"}, 400, "last boundary is missing"),
        (b"--b--", {"content_type": "multipart/form-data; boundary=b"}, 400, "has no file"),
        (b"--b\r\nX: y\r\n--b--", {"content_type": "multipart/form-data; boundary=b"}, 400, "has no head"),
    ],
)  # fmt: skip
def test_what_is_refused(body: bytes, headers: dict[str, str], status: int, sentence: str) -> None:
    reply = post(app(), "/predict", body, **headers)
    assert reply.status == status
    assert re.search(sentence, reply.data["error"])


def test_limits_on_bytes_and_files() -> None:
    small = app(max_bytes=1000, max_files=2)
    reply = post(small, "/predict", bytes(1001), **PNG)
    assert (reply.status, reply.data["error"]) == (413, "the request has more than 1,000 bytes, the most that is taken")
    assert reply.headers["connection"] == "close"
    assert post(small, "/predict", bytes(5000), **PNG).status == 413
    body, headers = form(picture(), picture())
    assert post(small, "/predict", body, **headers).status == 200
    body, headers = form(picture(), picture(), picture())
    assert "more than 2 parts" in post(small, "/predict", body, **headers).data["error"]
    assert small.gate.images == small.gate.bytes == 0


def test_a_picture_of_one_row_and_grey_with_transparency() -> None:
    long = post(app(), "/predict", picture(255, size=(4000, 1)), **PNG)
    assert long.data["predictions"][0]["answers"][0]["label"] == "bright"
    file = BytesIO()
    Image.new("LA", (9, 9), (0, 0)).save(file, "PNG")
    clear = post(app(), "/predict", file.getvalue(), **PNG)
    assert clear.data["predictions"][0]["answers"][0]["label"] == "bright"  # laid over white


@pytest.mark.parametrize("top", ["0", "-1", "x", "", "1" * 30, "²"])
def test_a_wrong_number_of_classes(top: str) -> None:
    reply = post(app(), f"/predict?top={top}", picture(), **PNG)
    assert (reply.status, reply.data["error"][:6]) == (400, "top is")


def test_an_address_has_sixteen_values_at_most() -> None:
    sixteen = "/predict?top=2" + "&other=1" * 15
    assert len(post(app(), sixteen, picture(), **PNG).data["predictions"][0]["answers"]) == 2
    reply = post(app(), f"{sixteen}&other=1", picture(), **PNG)
    assert (reply.status, reply.data["error"]) == (400, "the address has more than 16 values after its question mark")


# --- explain ---------------------------------------------------------------------------------------------------------


def test_an_explanation_has_scores_the_picture_and_the_overlay() -> None:
    reply = post(app(explainer=Halves()), "/explain?target=dark", picture(255), **PNG)
    data = reply.data
    assert (data["method"], data["target"]) == ("halves", {"index": 0, "label": "dark"})
    assert data["answers"][0]["label"] == "bright"
    assert data["contrast"] == 1.0
    assert data["overlay"].startswith("data:image/png;base64,")
    png = post(app(explainer=Halves()), "/explain", picture(255), accept="image/png", **PNG)
    assert png.headers["content-type"] == "image/png"
    layer = Image.open(BytesIO(png.body))
    assert (layer.size, layer.mode) == ((8, 8), "RGBA")
    assert layer.getpixel((0, 0)) == (240, 249, 33, 255)
    assert layer.getpixel((7, 0))[3] == 0


def test_an_explanation_of_one_layer_and_one_head() -> None:
    halves = Halves()
    data = post(app(explainer=halves), "/explain?method=rows&head=3", picture(255), **PNG).data  # of the last layer
    assert (data["layer"], data["head"], data["targeted"]) == (None, 3, False)
    layer = Image.open(BytesIO(base64.b64decode(data["overlay"].partition(",")[2])))
    assert [layer.getpixel((0, row))[3] for row in range(8)] == [0, 0, 0, 0, 0, 0, 255, 0]
    post(app(explainer=halves), "/explain?method=layer_alone&layer=1&target=middle", picture(255), **PNG)
    assert halves.asked == [
        Question(method="rows", target=2, head=3),
        Question(method="layer_alone", target=1, layer=1),
    ]


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/explain?method=halfs", 400, "there is no method 'halfs'; did you mean 'halves'?"),
        ("/explain?target=3", 400, "there is no class '3'"),
        ("/explain?layer=1", 400, "halves has no choice of a layer; these have: rows, layer_alone"),
        ("/explain?method=layer_alone&head=0", 400, "layer_alone has no choice of a head; these have: rows"),
        ("/explain?method=rows&layer=3", 400, "there is no layer '3'; rows has 3, from 0 to 2"),
        ("/explain?method=rows&layer=-1", 400, "there is no layer '-1'"),
        ("/explain?method=rows&layer=0&head=3", 400, "there is no head '3'; rows has 2, from 0 to 1"),
        ("/explain?method=never", 501, "never makes no sense for this model"),
    ],
)
def test_explanations_that_cannot_be(path: str, status: int, sentence: str) -> None:
    reply = post(app(explainer=Halves()), path, picture(), **PNG)
    assert reply.status == status
    assert sentence in reply.data["error"]


def test_a_model_without_explanations() -> None:
    reply = post(app(), "/explain", picture(), **PNG)
    assert (reply.status, "cannot be explained here" in reply.data["error"]) == (501, True)
    body, headers = form(picture(), picture())
    reply = post(app(explainer=Halves()), "/explain", body, **headers)
    assert (reply.status, reply.data["error"]) == (400, "explain takes one picture, and 2 came")


# --- batching and back-pressure --------------------------------------------------------------------------------------


def gather(of: App, count: int, **headers: str) -> list[Reply]:
    async def all_at_once() -> list[Reply]:
        each = (ask(of, "/predict", method="POST", body=picture(), **PNG, **headers) for _ in range(count))
        return list(await asyncio.gather(*each))

    return asyncio.run(all_at_once())


def test_requests_are_computed_together() -> None:
    engine = Held()
    of = app(engine, max_batch=8, batch_wait=0.0)
    engine.hold()

    async def story() -> list[Reply]:
        each = [asyncio.create_task(ask(of, "/predict", method="POST", body=picture(), **PNG)) for _ in range(20)]
        await until(engine.entered.is_set)
        await until(lambda: len(of.batcher._queue) >= 12)  # all but the first batch, of 8 at most
        await until(lambda: of.metrics.total("waiting_images") == 20)
        engine.go.set()
        return await asyncio.gather(*each)

    replies = asyncio.run(story())
    assert [reply.status for reply in replies] == [200] * 20
    assert sum(engine.batches) == 20
    assert engine.batches[1] == 8
    assert {reply.data["predictions"][0]["batch"] for reply in replies} == set(engine.batches)


def test_a_lone_picture_does_not_wait_for_company() -> None:
    lone = app(batch_wait=60.0, timeout=10.0)  # one that waited would be told that it took too long
    assert post(lone, "/predict", picture(), **PNG).status == 200


@pytest.mark.parametrize("path", ["/predict", "/explain"])
def test_nothing_is_computed_for_a_client_that_has_left(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    engine, halves, leaves = Held(), Halves(), asyncio.Event()
    of = app(engine, explainer=halves)
    engine.hold()

    async def story() -> Reply:
        stays = asyncio.create_task(ask(of, path, method="POST", body=picture(), **PNG))
        await until(engine.entered.is_set)
        goes = asyncio.create_task(ask(of, path, method="POST", body=picture(), leaves=leaves, **PNG))
        await until(lambda: len(of.batcher._queue) == 1)
        leaves.set()
        assert await goes is None
        assert of.gate.images == 1
        engine.go.set()
        return await stays

    assert asyncio.run(story()).status == 200
    assert post(of, path, picture(), **PNG).status == 200
    assert engine.batches == [1, 1]
    assert len(halves.asked) == (2 if path == "/explain" else 0)
    assert (of.metrics.total("abandoned_total"), of.metrics.total("images_total")) == (1, 2)
    assert "the client left" in capsys.readouterr().err


def test_a_full_queue_answers_503_at_once_and_recovers() -> None:
    of = app(Brightness(seconds=0.02), max_waiting=3, max_batch=1)
    replies = gather(of, 12)
    refused = [reply for reply in replies if reply.status == 503]
    assert len(refused) == 9
    assert all(int(reply.headers["retry-after"]) >= 1 for reply in refused)
    assert "the queue is full" in refused[0].data["error"]
    assert (of.gate.images, of.gate.bytes) == (0, 0)
    assert of.metrics.total("refused_total", "full") == 9
    assert post(of, "/predict", picture(), **PNG).status == 200


def test_a_queue_that_is_too_slow_answers_503() -> None:
    of = app(max_batch=1, max_delay=0.25)
    assert post(of, "/predict", picture(), **PNG).status == 200
    assert of.gate.rate > 0
    of.gate.rate = 10.0  # pictures a second
    replies = gather(of, 10)
    assert sum(reply.status == 200 for reply in replies) == 3
    assert "longer than the time" in next(reply for reply in replies if reply.status == 503).data["error"]


def test_uploads_together_stay_within_memory() -> None:
    of = app(max_memory=3000)

    async def slow() -> list[Reply]:
        each = (ask(of, "/predict", method="POST", body=bytes(2000), chunk=500, pause=0.02, **PNG) for _ in range(4))
        return list(await asyncio.gather(*each))

    statuses = sorted(reply.status for reply in asyncio.run(slow()))
    assert statuses[-1] == 503
    assert set(statuses) <= {422, 503}  # zeros are no picture
    assert of.gate.bytes == 0


def test_time_is_limited_for_clients_and_for_the_engine() -> None:
    slow = asyncio.run(ask(app(timeout=0.1), "/predict", method="POST", body=bytes(900), chunk=1, pause=0.05, **PNG))
    assert (slow.status, slow.data["error"]) == (408, "the request was not whole within 0.1 s")
    late = post(app(Brightness(seconds=0.3), timeout=0.1), "/predict", picture(), **PNG)
    assert (late.status, late.headers["retry-after"]) == (503, "1")


def test_an_engine_that_fails_fails_one_batch_only(capsys: pytest.CaptureFixture[str]) -> None:
    engine = Brightness()
    of = app(engine)
    engine.run = lambda images: 1 / 0  # type: ignore[assignment]
    assert post(of, "/predict", picture(), **PNG).status == 500
    assert "ZeroDivisionError" in capsys.readouterr().err
    del engine.run
    assert post(of, "/predict", picture(), **PNG).status == 200


# --- what stands around it -------------------------------------------------------------------------------------------


def get(of: App, path: str, **headers: str) -> Reply:
    return asyncio.run(ask(of, path, **headers))


def test_health_model_and_metrics() -> None:
    of = app()
    assert get(of, "/healthz").data == {"status": "alive"}
    assert get(of, "/readyz").data == {"status": "ready", "generation": 1}
    model = get(of, "/model").data
    assert model["labels"] == ["dark", "middle", "bright"]
    assert (model["explain"], model["calibration"]) == ([], "not calibrated")
    offers = get(app(explainer=Halves()), "/model").data["explain"]
    assert offers[2] == {"method": "rows", "targeted": False, "layers": 3, "heads": [2, 2, 4]}
    post(of, "/predict", picture(), **PNG)
    text = get(of, "/metrics").body.decode()
    assert 'vitrail_requests_total{route="/predict",status="200"} 1' in text
    assert 'vitrail_batch_size_bucket{le="1"} 1' in text
    assert "vitrail_images_total 1" in text
    assert re.fullmatch(r"(# (HELP|TYPE) .*\n|[a-z_]+(\{[^}]*\})? [0-9.e+-]+\n)*", text)
    of.draining = True
    ready = get(of, "/readyz")
    assert (ready.status, ready.headers["connection"]) == (503, "close")
    assert post(of, "/predict", picture(), **PNG).headers["connection"] == "close"


def test_ways_that_lead_nowhere() -> None:
    assert get(app(), "/etc/passwd").status == 404
    reply = get(app(), "/predict")
    assert (reply.status, reply.headers["allow"]) == (405, "POST")
    assert get(app(), "/model?" + "&".join(f"{n}=1" for n in range(40))).status == 200  # nothing there is read
    assert post(app(), "/predict?" + "&".join(f"{n}=1" for n in range(40)), picture(), **PNG).status == 400


def test_the_key_opens_everything_but_the_page_and_health() -> None:
    key = "a key of some length"
    of = app(api_key=key)
    for path in ("/", "/page.js", "/page.css", "/samples.json", "/healthz", "/readyz"):
        assert get(of, path).status == 200, path
    for path in ("/model", "/metrics", "/openapi.json"):
        assert get(of, path).status == 401, path
        assert get(of, path, x_api_key="a key of some lengtH").status == 401
        assert get(of, path, x_api_key=key).status == 200
        assert get(of, path, authorization=f"Bearer {key}").status == 200
    assert post(of, "/predict", picture(), **PNG).status == 401
    assert post(of, "/predict", picture(), x_api_key="ü" * 20, **PNG).status == 401
    assert key not in get(of, "/openapi.json", x_api_key=key).body.decode()


def test_a_model_that_fails_at_its_first_picture_is_not_taken() -> None:
    class Lame(Brightness):
        def run(self, images: Array) -> Array:
            raise RuntimeError("out of order")

    engines = iter([Brightness(), Lame(), Brightness()])
    slot = Slot(lambda: Served(engine=next(engines)))
    first = slot.served
    assert not slot.reload()
    assert (slot.served, slot.error) == (first, "out of order")
    assert slot.reload()
    assert (slot.served.generation, slot.error) == (2, None)


def test_reloading_over_http_needs_a_key() -> None:
    assert post(app(), "/admin/reload", b"").status == 403
    of = app(api_key="k" * 16)
    assert post(of, "/admin/reload", b"").status == 401


def test_logs_say_what_happened_and_not_what_was_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    body, headers = form(picture())
    post(app(), "/predict", body.replace(b"0.png", b"me-on-holiday.png"), **headers)
    (line,) = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert (told["route"], told["status"], told["images"], told["batch"]) == ("/predict", 200, 1, 1)
    assert told["client"] == "192.0.2.7"
    assert "holiday" not in line


def test_openapi_tells_every_way_and_every_status() -> None:
    of = app()
    told = get(of, "/openapi.json").data
    assert set(told["paths"]) == {path for path in of._routes if path not in (*of._files, "/openapi.json")}
    assert {"200", "400", "401", "408", "413", "415", "422", "503"} == set(
        told["paths"]["/predict"]["post"]["responses"]
    )
    assert "501" in told["paths"]["/explain"]["post"]["responses"]


def test_counters_of_workers_are_added_up(tmp_path: object) -> None:
    rows = Metrics.alone().rows.repeat(2, axis=0)
    one, two = Metrics(rows, 0), Metrics(rows, 1)
    one.add("images_total", amount=3)
    two.add("images_total", amount=4)
    two.observe("queue_seconds", 0.03)
    assert one.total("images_total") == 7
    assert 'vitrail_queue_seconds_bucket{le="0.025"} 0' in one.text()
    assert 'vitrail_queue_seconds_bucket{le="0.05"} 1' in one.text()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"api_key": "short"}, "has 5 characters; it must have 16 or more"),
        ({"certificate": "a.pem"}, "both a certificate and its private key"),
        ({"port": 70000}, "port is 70000"),
        ({"max_batch": 0}, "max_batch is 0"),
    ],
)
def test_bad_settings(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ServeConfig(**changes)
