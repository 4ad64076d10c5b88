"""The OpenAPI document lists every route and every status, with the answers of the task."""

import asyncio
import json
import re

from support.small_service import Halves, app, ask, picture, post

from vitrail.serve.fetch import MAX_URL
from vitrail.serve.overlay import MAX_SIDE, MIN_SIDE


def test_every_route_and_every_status() -> None:
    of = app()
    document = asyncio.run(ask(of, "/openapi.json")).data
    assert set(document["paths"]) == {path for path in of.routes if path not in (*of._files, "/openapi.json")}
    statuses = set(document["paths"]["/predict"]["post"]["responses"])
    assert statuses == {"200", "400", "401", "408", "413", "415", "421", "422", "503"}
    assert "501" in document["paths"]["/explain"]["post"]["responses"]


def test_answers_are_described_by_the_task() -> None:
    of = app()
    schemas = asyncio.run(ask(of, "/openapi.json")).data["components"]["schemas"]
    assert schemas["Answer"] == of.slot.served.engine.task.answer_schema()


def test_urls_are_described_where_they_are_fetched() -> None:
    def described(*hosts: str) -> tuple[bool, bool]:
        document = asyncio.run(ask(app(url_hosts=hosts), "/openapi.json")).data
        body = document["components"]["requestBodies"]["Images"]["content"]
        return "application/json" in body, "403" in document["paths"]["/explain"]["post"]["responses"]

    assert described() == (False, False)
    assert described("example.org") == (True, True)


def test_references_and_limits() -> None:
    document = asyncio.run(ask(app(max_files=7), "/openapi.json")).data
    for reference in re.findall(r'"\$ref":"#/([^"]+)"', json.dumps(document, separators=(",", ":"))):
        found = document
        for name in reference.split("/"):
            found = found[name]
    text = document["paths"]["/explain"]["post"]["description"]
    assert str(MIN_SIDE) in text
    assert f"{MAX_SIDE:,}" in text
    assert "7 files" in document["components"]["requestBodies"]["Images"]["description"]
    urls = asyncio.run(ask(app(url_hosts=("example.org",)), "/openapi.json")).data
    body = urls["components"]["requestBodies"]["Images"]["content"]["application/json"]["schema"]
    assert body["properties"]["url"]["maxLength"] == MAX_URL


def test_responses_have_the_documented_keys() -> None:
    of = app(explainer=Halves())
    schemas = asyncio.run(ask(of, "/openapi.json")).data["components"]["schemas"]
    model = asyncio.run(ask(of, "/model")).data
    assert set(model) == set(schemas["Model"]["required"]) == set(schemas["Model"]["properties"])
    explained = post(of, "/explain", picture(), content_type="image/png").data
    assert set(explained) == {"answers", *schemas["Explanation"]["allOf"][1]["required"]}
    (found,) = post(of, "/predict?display=1", picture(), content_type="image/png").data["predictions"]
    assert set(found) == {"answers", *schemas["Prediction"]["properties"]}
    bar = schemas["Prediction"]["properties"]["display"]["properties"]["bars"]["items"]
    assert set(found["display"]["bars"][0]) == set(bar["required"])
