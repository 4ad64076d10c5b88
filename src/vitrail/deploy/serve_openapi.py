"""The service described in OpenAPI 3.1, for people and for the tools that generate clients and tests."""

from typing import Any

from vitrail import __version__
from vitrail.deploy.serve_config import ServeConfig
from vitrail.deploy.serve_fetch import LONGEST

_TEXT, _NUMBER, _WHOLE, _FLAG = ({"type": kind} for kind in ("string", "number", "integer", "boolean"))
_FROM_ZERO = {"type": "integer", "minimum": 0}


def document(config: ServeConfig) -> dict[str, Any]:
    """The whole description; the limits in it are the service's own."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "vitrail", "version": __version__, "description": "A vision model as a service."},
        "paths": {
            "/predict": {"post": _predict(config)},
            "/explain": {"post": _explain(config)},
            "/model": {"get": _get("What the model is", _ref("Model"), key=True)},
            "/healthz": {"get": _get("Whether the process is alive", _status("alive"))},
            "/readyz": {"get": _get("Whether work is taken", _status("ready"), 503)},
            "/metrics": {"get": _get("Numbers for Prometheus", _TEXT, key=True, kind="text/plain")},
            "/admin/reload": {"post": _reload()},
        },
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-API-Key"}},
        },
    }


def _predict(config: ServeConfig) -> dict[str, Any]:
    top = _query("top", "How many classes to name", {"type": "integer", "minimum": 1, "default": 5})
    return {
        "summary": "What is in one or several pictures",
        "description": (
            f"At most {config.max_files} files, {config.max_bytes:,} bytes and {config.max_pixels:,} pixels a picture. "
            "Of several pictures, one that cannot be decoded has its `error` in place of `answers`."
        ),
        "operationId": "predict",
        "security": [{}, {"key": []}],
        "parameters": [top],
        "requestBody": _pictures(config),
        "responses": _responses(_json(_ref("Predictions")), *_refused(config)),
    }


def _explain(config: ServeConfig) -> dict[str, Any]:
    parameters = [
        _query("method", "A method of /model's `explain`; the first of them where none is named", _TEXT),
        _query("target", "The class asked about: its label or number; the likeliest where none is named", _TEXT),
        _query("layer", "One of the method's `layers`, from 0; the last where none is named", _FROM_ZERO),
        _query("head", "One of the layer's `heads`, from 0; the mean of all where none is named", _FROM_ZERO),
    ]
    content = _json(_ref("Explanation")) | {"image/png": {"schema": {"type": "string", "format": "binary"}}}
    return {
        "summary": "Where the model saw it: saliency over one picture",
        "operationId": "explain",
        "security": [{}, {"key": []}],
        "parameters": parameters,
        "requestBody": _pictures(config),
        "responses": _responses(content, *_refused(config), 501),
    }


def _reload() -> dict[str, Any]:
    answered = _responses({}, 401, 403)
    del answered["200"]
    answered["202"] = {"description": "The model is being opened again", "content": _json(_status("reloading"))}
    return {
        "summary": "Open the model again and swap it in; /model counts `generation`",
        "operationId": "reload",
        "security": [{"key": []}],
        "responses": answered,
    }


def _get(summary: str, schema: dict[str, Any], *codes: int, key: bool = False, kind: str = "") -> dict[str, Any]:
    content = {kind: {"schema": schema}} if kind else _json(schema)
    described = {"summary": summary, "responses": _responses(content, *codes, *((401,) if key else ()))}
    return described | ({"security": [{}, {"key": []}]} if key else {})


def _responses(content: dict[str, Any], *codes: int) -> dict[str, Any]:
    sentences = {
        400: "The request is not formed as it must be",
        401: "The API key is missing or wrong",
        403: "Not allowed in this service",
        408: "The request was not whole in time",
        413: "Too many bytes or files",
        415: "No way to send pictures",
        422: "The picture cannot be fetched or decoded, or has too many pixels",
        501: "This model cannot be explained here",
        503: "Too much to do; Retry-After says when to come again",
    }
    refused = {str(code): {"description": sentences[code], "content": _json(_ref("Refusal"))} for code in codes}
    if "503" in refused:
        refused["503"]["headers"] = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}}}
    return {"200": {"description": "The answer", "content": content}} | refused


def _refused(config: ServeConfig) -> tuple[int, ...]:
    """The statuses of a request with pictures that is not answered."""
    return (400, 401, *((403,) if config.url_hosts else ()), 408, 413, 415, 422, 503)


def _pictures(config: ServeConfig) -> dict[str, Any]:
    """A form, the picture itself, and its address where the service fetches."""
    binary = {"type": "string", "format": "binary"}
    form = _object({"file": {"type": "array", "items": binary, "minItems": 1}})
    content = {"multipart/form-data": {"schema": form}}
    if config.url_hosts:
        url = {"type": "string", "format": "uri", "pattern": "^https?://", "maxLength": LONGEST}
        content |= _json(_object({"url": url}) | {"additionalProperties": False})
    kinds = ("image/jpeg", "image/png", "image/webp", "application/octet-stream")
    return {"required": True, "content": content | {kind: {"schema": binary} for kind in kinds}}


def _schemas() -> dict[str, Any]:
    answer = _object({"label": _TEXT, "index": _WHOLE, "probability": _share(), "chosen": _FLAG})
    spent = _object({"queued": _NUMBER, "computing": _NUMBER})
    prediction = _object({"name": _TEXT, "answers": _many(_ref("Answer")), "batch": _WHOLE, "milliseconds": spent})
    broken = _object({"name": _TEXT, "error": _TEXT})
    image = {"type": "string", "description": "a PNG as a data: address"}
    numbers = {"generation": _WHOLE, "milliseconds": _NUMBER}
    target = _object({"index": _WHOLE, "label": _TEXT})
    choice = {"type": ["integer", "null"]}
    offer = _object({"method": _TEXT, "targeted": _FLAG, "layers": _WHOLE, "heads": _many(_WHOLE)})
    shown = {"method": _TEXT, "targeted": _FLAG, "layer": choice, "head": choice, "target": target}
    shown |= {"answers": _many(_ref("Answer")), "seen": image, "overlay": image, "contrast": _share()}
    model = {
        "about": _TEXT,
        "backend": _TEXT,
        "labels": _many(_TEXT),
        "multi_label": _FLAG,
        "image_size": _many(_WHOLE),
        "licence": _TEXT,
        "calibration": _TEXT,
        "temperature": _NUMBER,
        "explain": _many(offer),
        "generation": _WHOLE,
        "opened": _NUMBER,
        "reload_error": {"type": ["string", "null"]},
        "limits": _object(dict.fromkeys(("bytes", "files", "pixels", "seconds"), _NUMBER)),
        "version": _TEXT,
    }
    return {
        "Answer": answer,
        "Predictions": _object({"predictions": _many({"oneOf": [prediction, broken]})} | numbers),
        "Explanation": _object(shown | numbers),
        "Model": _object(model),
        "Refusal": _object({"error": _TEXT}),
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _many(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _share() -> dict[str, Any]:
    return {"type": "number", "minimum": 0, "maximum": 1}


def _status(value: str) -> dict[str, Any]:
    return _object({"status": {"const": value}})


def _query(name: str, text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "description": text, "schema": schema}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}
