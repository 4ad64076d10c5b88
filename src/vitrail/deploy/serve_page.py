"""The page at /: its three files, and pictures to try where the package has some that fit the model."""

import json
from importlib import resources
from typing import NamedTuple

from vitrail.data.embedded import read_embedded
from vitrail.data.known import KNOWN
from vitrail.deploy.engine import Engine
from vitrail.deploy.serve_overlay import picture_png
from vitrail.packaged import samples

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
    pictures = _samples(set(engine.labels))
    addresses = {label: f"/samples/{number}.png" for number, label in enumerate(pictures)}
    listed = [{"address": address, "label": label} for label, address in addresses.items()]
    files["/samples.json"] = PageFile(json.dumps(listed).encode(), "application/json")
    return files | {addresses[label]: PageFile(picture, "image/png") for label, picture in pictures.items()}


def _samples(labels: set[str]) -> dict[str, bytes]:
    """Label -> PNG: pictures of which no training has seen one, where the model knows the classes of them all."""
    shipped = samples()
    if shipped and shipped.keys() <= labels:
        return {label: path.read_bytes() for label, path in shipped.items()}
    return _clothes() if labels.issuperset(KNOWN["fashion-mnist"].classes) else {}


def _clothes() -> dict[str, bytes]:
    """The first test picture of each class of Fashion-MNIST."""
    test = read_embedded().test
    assert test is not None  # noqa: S101  (the package has it)
    labels = test.labels.tolist()
    return {name: picture_png(test.read(labels.index(label))) for label, name in enumerate(test.classes)}
