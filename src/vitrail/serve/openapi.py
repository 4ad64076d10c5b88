"""The OpenAPI document of the service: openapi.yaml with the limits of this service and the answers of its task."""

from importlib import resources
from typing import Any

import yaml

from vitrail import __version__
from vitrail.serve.config import ServeConfig


def document(config: ServeConfig, answer: dict[str, Any]) -> dict[str, Any]:
    """The whole document; `answer` is the JSON schema of the task's answers."""
    text = (resources.files("vitrail.serve") / "openapi.yaml").read_text(encoding="utf-8")
    filled: dict[str, Any] = yaml.safe_load(text)
    filled["info"]["version"] = __version__
    filled["components"]["schemas"]["Answer"] = answer
    images = filled["components"]["requestBodies"]["Images"]
    images["description"] = (
        f"At most {config.max_files} files, {config.max_bytes:,} bytes, and {config.max_pixels:,} pixels per image"
    )
    for operations in filled["paths"].values():
        for operation in operations.values():
            operation["responses"]["421"] = {"$ref": "#/components/responses/421"}
    if not config.url_hosts:  # this service fetches no URLs
        del images["content"]["application/json"]
        for path in ("/predict", "/explain"):
            del filled["paths"][path]["post"]["responses"]["403"]
    return filled
