"""Routes, health, the API key, reloading, errors and logs."""

import asyncio
import json
import re

import pytest
from support.small_service import Halves, Reply, app, ask, form, picture, post

from vitrail.errors import ConfigError
from vitrail.serve.app import App
from vitrail.serve.config import ServeConfig

PNG = {"content_type": "image/png"}


def get(of: App, path: str, **headers: str) -> Reply:
    return asyncio.run(ask(of, path, **headers))


def test_health_model_and_metrics() -> None:
    of = app()
    assert get(of, "/healthz").data == {"status": "alive"}
    assert get(of, "/readyz").data == {"status": "ready", "generation": 1}
    model = get(of, "/model").data
    assert (model["task"], model["outputs"]) == ("classify", ["dark", "middle", "bright"])
    assert (model["explain"], model["image_size"]) == ([], [8, 8])
    assert model["limits"].items() >= {"decoders": 2, "decode_seconds": 5.0, "min_rate": 1000, "seconds": 15.0}.items()
    assert model["limits"]["formats"] == ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"]
    methods = get(app(explainer=Halves()), "/model").data["explain"]
    assert methods[2] == {"method": "rows", "targeted": False, "layers": 3, "heads": [2, 2, 4]}
    post(of, "/predict", picture(), **PNG)
    text = get(of, "/metrics").body.decode()
    assert 'vitrail_requests_total{route="/predict",status="200"} 1' in text
    assert 'vitrail_batch_size_bucket{le="1"} 2' in text  # one of them for /readyz
    assert "vitrail_images_total 2" in text
    assert re.fullmatch(r"(# (HELP|TYPE) .*\n|[a-z_]+(\{[^}]*\})? [0-9.e+-]+\n)*", text)
    of.draining = True
    ready = get(of, "/readyz")
    assert (ready.status, ready.headers["connection"]) == (503, "close")
    assert post(of, "/predict", picture(), **PNG).headers["connection"] == "close"


def test_paths_and_methods_that_do_not_exist() -> None:
    for path in ("/etc/passwd", "/page/../page.js", "/predict/", "//"):
        reply = get(app(), path)
        assert (reply.status, reply.data["error"]) == (404, "not found; see /openapi.json")
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


def test_reloading_over_http_needs_a_key() -> None:
    assert post(app(), "/admin/reload", b"").status == 403
    of = app(api_key="k" * 16)
    assert post(of, "/admin/reload", b"").status == 401


def test_logs_say_what_happened_and_not_what_was_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    body, headers = form(picture())
    post(app(), "/predict", body.replace(b"0.png", b"me-on-holiday.png"), **headers)
    (line,) = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert (entry["route"], entry["status"], entry["images"], entry["batch"]) == ("/predict", 200, 1, 1)
    assert entry["client"] == "192.0.2.7"
    assert "holiday" not in line


def test_head_requests_are_answered_like_get() -> None:
    reply = asyncio.run(ask(app(), "/page.css", method="HEAD"))
    assert (reply.status, reply.headers["content-type"]) == (200, "text/css; charset=utf-8")
    assert asyncio.run(ask(app(), "/predict", method="HEAD")).status == 405


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"api_key": "short"}, "16"),
        ({"certificate": "a.pem"}, "private key"),
        ({"port": 70000}, "port"),
        ({"max_batch": 0}, "max_batch"),
    ],
)
def test_settings_that_are_not_valid(changes: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        ServeConfig(**changes)
