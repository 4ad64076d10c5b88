"""Hostile uploads: whatever comes, the answer is one of the documented ones, and nothing is held back afterwards.

The full number of uploads, over the network and with an eye on memory: benchmarks/serve.py.
"""

import json
import random
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from starlette.exceptions import HTTPException
from support.mutate.pictures import originals
from support.mutate.requests import body_of, target
from support.small_service import Brightness, Halves, app, form, picture, post

from vitrail.serve.app import App
from vitrail.serve.config import ServeConfig
from vitrail.serve.upload import parse_files

ALLOWED = {200, 400, 413, 415, 422, 501}
FEW = settings(
    max_examples=120, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture(scope="module")
def of() -> Iterator[App]:
    made = app(Brightness(), explainer=Halves(), max_bytes=1 << 20)
    yield made
    made.close()


@FEW
@given(seed=st.integers(0, 2**32 - 1))
def test_uploads_get_documented_answers(of: App, seed: int) -> None:
    chance = random.Random(seed)
    kind, body, content_type = body_of(chance)
    reply = post(of, target(chance), body, content_type=content_type)
    assert reply.status in ALLOWED, (kind, reply.body)
    data = json.loads(reply.body)
    assert ("error" in data) == (reply.status != 200)
    assert (of.limiter.images, of.limiter.bytes) == (0, 0)


@FEW
@given(body=st.binary(max_size=400), boundary=st.text("ab-", max_size=3))
@example(body=b"--a\r\n\r\n\r\n--a--", boundary="a")
@example(body=b'--a\r\nfilename="\\', boundary="a")
@example(body=b'--a\r\nContent-Disposition: form-data; filename="b.png"\r\n\r\nlight\r\n--a--', boundary="a")  # whole
def test_forms_are_files_or_refused(body: bytes, boundary: str) -> None:
    body = body.replace(b"x", f"\r\n--{boundary}".encode())
    try:
        files = parse_files(body, f"multipart/form-data; boundary={boundary}", ServeConfig(max_files=3))
    except HTTPException as error:
        assert error.status_code in (400, 413)
    else:
        assert 1 <= len(files) <= 3
        assert all(file.name.isprintable() and file.data in body for file in files)


@settings(FEW, max_examples=40)
@given(files=st.lists(st.binary(max_size=60), min_size=1, max_size=4))
def test_forms_keep_every_byte(files: list[bytes]) -> None:
    body, headers = form(*files)
    found = parse_files(body, headers["content-type"], ServeConfig())
    assert [file.data for file in found] == files


def test_headers_of_a_part_are_limited() -> None:
    body, headers = form(b"x")
    with pytest.raises(HTTPException, match="8192"):
        parse_files(
            body.replace(b"\r\n\r\n", b"\r\nX: " + b"x" * 9000 + b"\r\n\r\n"), headers["content-type"], ServeConfig()
        )


@pytest.fixture(scope="module")
def fetching() -> Iterator[App]:
    """A service that may fetch from hosts which nobody can find."""

    def lost(*asked: Any, **more: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    made = app(Brightness(), url_hosts=("example.org", "*.images.example.org"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", lost)
        yield made
    made.close()


@FEW
@given(
    before=st.sampled_from(["", "http:", "http://", "https://a.images.", "http://[", "http://example.org:"]),
    middle=st.text(max_size=20),
    after=st.sampled_from(["", "example.org", ":80/", "@example.org/", ".images.example.org/a.png", "]/"]),
)
@example(before="http://", middle="\ud800", after=".images.example.org/a.png")
@example(before="http://", middle="℀", after=".images.example.org/a.png")
@example(before="http://example.org:", middle="²", after="")
def test_addresses_get_documented_answers(fetching: App, before: str, middle: str, after: str) -> None:
    body = json.dumps({"url": before + middle + after}).encode()
    reply = post(fetching, "/predict", body, content_type="application/json")
    assert reply.status in {400, 403, 422}, (before + middle + after, reply.body)
    assert (fetching.limiter.images, fetching.limiter.bytes) == (0, 0)


def test_whole_files_of_every_format_are_answered(of: App) -> None:
    files = [file for each in originals().values() for file in each]
    body, headers = form(*files)
    reply = post(of, "/predict", body, **headers)
    assert reply.status == 200
    for file, found in zip(files, reply.data["predictions"], strict=True):
        assert ("error" if file[:1] == b"P" else "answers") in found  # PPM is refused
    assert post(of, "/predict", picture(), content_type="image/png").status == 200
