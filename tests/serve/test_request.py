"""Limits on the query and the body of a request."""

import asyncio

from support.small_service import app, ask, form, picture, post

PNG = {"content_type": "image/png"}


def test_chunks_of_any_size_are_put_together() -> None:
    body, headers = form(picture(0))
    assert asyncio.run(ask(app(), "/predict", method="POST", body=body, chunk=7, **headers)).status == 200


def test_limits_on_bytes_and_files() -> None:
    small = app(max_bytes=1000, max_files=2)
    reply = post(small, "/predict", bytes(1001), **PNG)
    assert (reply.status, "1,000 bytes" in reply.data["error"]) == (413, True)
    assert reply.headers["connection"] == "close"
    assert post(small, "/predict", bytes(5000), **PNG).status == 413
    body, headers = form(picture(), picture())
    assert post(small, "/predict", body, **headers).status == 200
    body, headers = form(picture(), picture(), picture())
    assert "2 parts" in post(small, "/predict", body, **headers).data["error"]
    assert small.limiter.images == small.limiter.bytes == 0


def test_a_query_has_sixteen_parameters_at_most() -> None:
    sixteen = "/predict?top=2" + "&other=1" * 15
    assert len(post(app(), sixteen, picture(), **PNG).data["predictions"][0]["answers"]) == 2
    reply = post(app(), f"{sixteen}&other=1", picture(), **PNG)
    assert (reply.status, "16 parameters" in reply.data["error"]) == (400, True)
