"""The files of the page at /, and sample images where the package has some that fit the model."""

from collections.abc import Sequence
from importlib import resources
from typing import NamedTuple

from vitrail.data.sources.embedded import read_embedded
from vitrail.packaged import samples
from vitrail.serve.overlay import png
from vitrail.strict_json import to_json

_MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}


class PageFile(NamedTuple):
    """A file that a browser loads."""

    data: bytes
    media_type: str


def page_files(outputs: Sequence[str]) -> dict[str, PageFile]:
    """All files of the page by path; with samples where the outputs of the model are named like them."""
    folder = resources.files("vitrail.serve") / "page"
    files = {}
    for path, name in {"/": "index.html", "/page.css": "page.css", "/page.js": "page.js"}.items():
        files[path] = PageFile((folder / name).read_bytes(), _MEDIA_TYPES[name.rpartition(".")[2]])
    images = _samples(set(outputs))
    paths = {label: f"/samples/{number}.png" for number, label in enumerate(images)}
    listed = [{"address": path, "label": label} for label, path in paths.items()]
    files["/samples.json"] = PageFile(to_json(listed).encode(), "application/json")
    return files | {paths[label]: PageFile(image, "image/png") for label, image in images.items()}


def _samples(outputs: set[str]) -> dict[str, bytes]:
    """Label -> PNG: images that no training has seen, when the model has an output for each of their labels."""
    packaged = samples()
    if packaged and packaged.keys() <= outputs:
        return {label: path.read_bytes() for label, path in packaged.items()}
    return _embedded(outputs)


def _embedded(outputs: set[str]) -> dict[str, bytes]:
    """The first test image of each label of the embedded data."""
    test = read_embedded().test
    assert test is not None  # noqa: S101  (the package contains it)
    ((field, target),) = test.schema.items()
    first: dict[str, int] = {}
    for index, value in enumerate(test.targets[field]):
        first.setdefault(target.text(value), index)
    return {label: png(test.read(index)) for label, index in first.items()} if first.keys() <= outputs else {}
