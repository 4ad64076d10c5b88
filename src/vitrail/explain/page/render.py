"""Explanations as one HTML file that needs no network: attention of each patch, saliency maps and their scores.

write_page(Gallery(title="cat.jpg", views=views), "cat.html")
"""

import base64
from collections.abc import Mapping, Sequence
from importlib import resources
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image
from torch import Tensor

from vitrail.explain.page.encode import LEVELS, encode_layers, encode_map
from vitrail.explain.page.gallery import Gallery, View
from vitrail.explain.page.outline import outline_path
from vitrail.explain.page.tables import mean_table, narrow_table
from vitrail.files import write_atomically
from vitrail.report import page
from vitrail.report.markup import environment
from vitrail.report.styles import css
from vitrail.strict_json import to_json

PACKAGE = "vitrail.explain.page"
MAX_BYTES = 5_000_000  # of a page
_MAX_PNG = 96  # pixels: up to here an image is stored as it is, and shown pixel by pixel
_MAX_SIDE = 448  # pixels of the longer side of a stored photo
_LAYER_BYTES = 400  # names and sizes around the weights of a layer


class _StoredImage(NamedTuple):
    """An image inside the page: PNG if it is tiny, otherwise JPEG."""

    src: str
    width: int
    height: int

    @classmethod
    def of(cls, image: Tensor) -> "_StoredImage":
        """From uint8 C H W with 1 or 3 channels."""
        pixels = image.permute(1, 2, 0).contiguous().cpu().numpy()  # H W C
        picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
        kind = "png" if max(picture.size) <= _MAX_PNG else "jpeg"
        picture.thumbnail((_MAX_SIDE, _MAX_SIDE), Image.Resampling.LANCZOS)
        stored = BytesIO()
        picture.save(stored, kind.upper(), quality=85, optimize=True)
        text = base64.b64encode(stored.getvalue()).decode()
        return cls(f"data:image/{kind};base64,{text}", picture.width, picture.height)


def write_page(gallery: Gallery, path: str | Path) -> Path:
    """Writes the page to a file, completely or not at all, and returns its path."""
    path, text = Path(path), gallery_page(gallery)
    write_atomically(path, lambda new: new.write_text(text, encoding="utf-8", errors="backslashreplace"))
    return path


def gallery_page(gallery: Gallery, *, limit: int = MAX_BYTES) -> str:
    """The gallery as one HTML page of at most `limit` bytes, as far as leaving out attention can reach that."""
    images = [_StoredImage.of(view.image) for view in gallery.views]
    stored = list(dict.fromkeys(images))
    data: dict[str, Any] = {
        "levels": LEVELS,
        "models": gallery.models,
        "pictures": gallery.pictures,
        "images": [image._asdict() for image in stored],
        "views": [
            _view_data(view, gallery, stored.index(image)) for view, image in zip(gallery.views, images, strict=True)
        ],
    }
    without_attention = len(_render(gallery, data, "").encode(errors="backslashreplace"))
    around = _LAYER_BYTES * sum(len(view.layers) for view in gallery.views)
    layers, left_out = encode_layers([view.layers for view in gallery.views], limit - without_attention - around)
    for view_data, of_view in zip(data["views"], layers, strict=True):
        view_data["layers"] = of_view
    return _render(gallery, data, left_out)


def _view_data(view: View, gallery: Gallery, image: int) -> dict[str, Any]:
    return {
        "model": gallery.models.index(view.model),
        "picture": gallery.pictures.index(view.picture),
        "image": image,
        "bars": [bar._asdict() for bar in view.bars],
        "target": view.target,
        "maps": {
            name: encode_map(values) | {"untargeted": name in view.untargeted} for name, values in view.maps.items()
        },
        "scores": [{"method": method, **score._asdict()} for method, score in view.scores.items()],
        "layers": [],
        "missing": view.missing,
        "outline": "" if view.part is None else outline_path(view.part.cpu()),
    }


def _render(gallery: Gallery, data: Mapping[str, Any], left_out: str) -> str:
    several = len(gallery.views) > 1
    compared = "two models" if len(gallery.models) > 1 else "two pictures" if several else "two methods or layers"
    script = (resources.files(PACKAGE) / "templates" / "explanations.js").read_text(encoding="utf-8").strip()
    body = (
        environment(PACKAGE)
        .get_template("explanations.html")
        .render(
            gallery=gallery,
            compared=compared,
            means=mean_table(gallery),
            each=narrow_table(gallery),
            notes=_notes(gallery, left_out),
            data=to_json(data, compact=True).replace("<", "\\u003c"),
            script=script,
        )
    )
    return page(gallery.title, body, style=css("explanations", PACKAGE))


def _notes(gallery: Gallery, left_out: str) -> Sequence[str]:
    notes = [*gallery.notes, *dict.fromkeys(view.note for view in gallery.views), left_out]
    if any(view.layers for view in gallery.views):
        notes.append(f"Weights are stored in {LEVELS + 1} levels, finer for small weights, so numbers are rounded.")
    if any(layer.side > 1 for view in gallery.views for layer in view.layers):
        notes.append(
            "Layers with a fine grid are shown in cells of several patches: the mean over a cell's queries, the sum "
            "over its keys."
        )
    return [note for note in notes if note]
