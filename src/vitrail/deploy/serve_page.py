"""The page at /: its three files, and pictures to try where the package has some that fit the model."""

import json
from importlib import resources
from typing import NamedTuple

from vitrail.data.embedded import read_embedded
from vitrail.data.known import KNOWN
from vitrail.deploy.engine import Engine
from vitrail.deploy.serve_overlay import picture_png

SAMPLES = (0, 1, 2, 3, 4, 5, 6, 7)  # labels of which the first test picture is shown
_KINDS = {"html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}


class PageFile(NamedTuple):
    """What a browser loads."""

    data: bytes
    kind: str
    caching: str = "no-cache"  # asks each time, so that an update is seen


def page_files(engine: Engine) -> dict[str, PageFile]:
    """Everything that the page consists of, by address."""
    folder = resources.files("vitrail.deploy") / "page"
    files = {}
    for address, name in {"/": "index.html", "/page.css": "page.css", "/page.js": "page.js"}.items():
        files[address] = PageFile((folder / name).read_bytes(), _KINDS[name.rpartition(".")[2]])
    samples = _samples() if engine.labels == KNOWN["fashion-mnist"].classes else {}
    listed = [{"address": address, "label": label} for address, (label, _) in samples.items()]
    files["/samples.json"] = PageFile(json.dumps(listed).encode(), "application/json")
    return files | {address: PageFile(data, "image/png") for address, (_, data) in samples.items()}


def _samples() -> dict[str, tuple[str, bytes]]:
    """Address -> label and PNG: test pictures of Fashion-MNIST, which no training has seen."""
    test = read_embedded().test
    assert test is not None  # noqa: S101  (the package has it)
    labels = test.labels.tolist()
    return {
        f"/samples/{number}.png": (test.classes[label], picture_png(test.read(labels.index(label))))
        for number, label in enumerate(SAMPLES)
    }
