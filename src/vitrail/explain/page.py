"""Explanations as one HTML file without network: what each patch attends to, what each method says, and how true it is.

views = look(model, images, names=names, methods=("relevance", "rollout"))
write_page(Gallery(title="cat.jpg", views=views), "cat.html")
"""

import base64
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image
from torch import Tensor

from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.explain.page_encode import LEVELS, LayerView, encoded, packed_map
from vitrail.explain.page_script import SCRIPT
from vitrail.explain.page_style import STYLE
from vitrail.models.checkpoint.files import write_atomically
from vitrail.report import Table, Unit, Value, page, section_html

EACH = "Picture by picture"
WAYS: dict[str, Unit] = {"insertion": "", "deletion": "", "shuffled": "", "pointing": "share"}
LIMIT = 5_000_000  # bytes of a page
_LINE = 22  # letters of a name in a narrow table
_TINY = 96  # pixels: up to here a picture is kept as it is, and shown pixel by pixel
_LARGEST = 448  # pixels of the longer side of what is kept of a photo


class _Stored(NamedTuple):
    """A picture inside the page: PNG where it is tiny, else JPEG."""

    src: str
    width: int
    height: int

    @classmethod
    def of(cls, image: Tensor) -> "_Stored":
        """From uint8 C H W with 1 or 3 channels."""
        pixels = image.permute(1, 2, 0).contiguous().cpu().numpy()  # H W C
        picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
        kind = "png" if max(picture.size) <= _TINY else "jpeg"
        picture.thumbnail((_LARGEST, _LARGEST), Image.Resampling.LANCZOS)
        stored = BytesIO()
        picture.save(stored, kind.upper(), quality=85, optimize=True)
        text = base64.b64encode(stored.getvalue()).decode()
        return cls(f"data:image/{kind};base64,{text}", picture.width, picture.height)


class Score(NamedTuple):
    """How true a map is: the areas under the curves of insertion (more is better) and deletion (less is better).

    A map that stays much the same when the model has forgotten all shows the picture and not the model.
    """

    insertion: float
    deletion: float
    baseline: bool = False  # "random" and "centre", which know nothing of the model
    shuffled: float | None = None  # rank correlation with the map of the same model with its weights shuffled
    pointing: bool | None = None  # whether the highest point lies on the object, where a mask says where that is


@dataclass(frozen=True, kw_only=True)
class View:
    """One picture through the eyes of one model.

    `image` is uint8 C H W, cut as the model sees it, at any scale; `maps` are H W by method, for the class `target`;
    `classless` names the methods whose maps are the same for every class. `layers` hold the attention, and `why` says
    in a sentence what has none.
    """

    model: str
    picture: str
    image: Tensor
    answers: Sequence[tuple[str, float]]
    target: str
    maps: Mapping[str, Tensor] = field(default_factory=dict)
    classless: Sequence[str] = ()
    scores: Mapping[str, Score] = field(default_factory=dict)
    layers: Sequence[LayerView] = ()
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """What a page shows: each picture through each model, once; `about` has a sentence on each model."""

    title: str
    views: Sequence[View]
    about: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Refuses a gallery with holes: every picture is seen by every model."""
        if not self.views:
            raise ConfigError("a page of explanations needs at least one picture")
        pairs = {(view.model, view.picture) for view in self.views}
        if len(pairs) != len(self.views) or len(pairs) != len(self.models) * len(self.pictures):
            raise ConfigError(
                f"a page shows each of {len(self.pictures)} pictures through each of {len(self.models)} models, once; "
                f"it was given {len(self.views)} views, {len(pairs)} of them different"
            )

    @property
    def models(self) -> list[str]:
        """The names of the models, in their order."""
        return list(dict.fromkeys(view.model for view in self.views))

    @property
    def pictures(self) -> list[str]:
        """The names of the pictures, in their order."""
        return list(dict.fromkeys(view.picture for view in self.views))


def gallery_page(gallery: Gallery, *, limit: int = LIMIT) -> str:
    """The gallery as one HTML page of at most `limit` bytes, as far as thinning out attention can reach that."""
    images = list(dict.fromkeys(_Stored.of(view.image) for view in gallery.views))
    document: dict[str, Any] = {
        "levels": LEVELS,
        "models": gallery.models,
        "pictures": gallery.pictures,
        "images": [image._asdict() for image in images],
        "views": [_view(view, gallery, images.index(_Stored.of(view.image))) for view in gallery.views],
    }
    empty = _whole(gallery, document, "")
    names = 400 * sum(len(view.layers) for view in gallery.views)  # what stands around the numbers of a layer
    attention, told = encoded([view.layers for view in gallery.views], limit - len(empty.encode()) - names)
    for view, layers in zip(document["views"], attention, strict=True):
        view["layers"] = layers
    return _whole(gallery, document, told)


def _view(view: View, gallery: Gallery, image: int) -> dict[str, Any]:
    return {
        "model": gallery.models.index(view.model),
        "picture": gallery.pictures.index(view.picture),
        "image": image,
        "answers": [[label, round(share, 5)] for label, share in view.answers],
        "target": view.target,
        "maps": {
            method: packed_map(values) | {"classless": method in view.classless} for method, values in view.maps.items()
        },
        "scores": [{"method": method, **score._asdict()} for method, score in view.scores.items()],
        "layers": [],
        "why": view.why,
    }


def write_page(gallery: Gallery, path: str | Path) -> Path:
    """Writes the page to a file, whole or not at all, and gives back where it is."""
    path, text = Path(path), gallery_page(gallery)
    try:
        write_atomically(path, lambda new: new.write_text(text, encoding="utf-8"))
    except CheckpointError as error:  # its words are about weights
        reason = error.__cause__ or "it is a folder"
        raise DataError(f"the page cannot be written to {path}: {reason}; give it another place") from error
    return path


def _whole(gallery: Gallery, document: Mapping[str, Any], left_out: str) -> str:
    stored = json.dumps(document, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    body = [_head(gallery), _scores(gallery), _kept(gallery, left_out)]
    if gallery.command:
        body.append(_section("Run it again", f"<pre>{html.escape(gallery.command)}</pre>"))
    body.append(f'<script type="application/json" id="data">{stored}</script>\n<script>\n{SCRIPT}\n</script>')
    return page(gallery.title, "\n".join(part for part in body if part), style=STYLE)


def _head(gallery: Gallery) -> str:
    about = (f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in gallery.about.items())
    several = len(gallery.pictures) * len(gallery.models) > 1
    what = "two models" if len(gallery.models) > 1 else "two pictures" if several else "two methods or layers"
    return f"""<p class="over">What the model sees</p>
<h1>{html.escape(gallery.title)}</h1>
<dl class="models lead">{"".join(about)}</dl>
<main>
<noscript><p>The maps need JavaScript; the scores below do not.</p></noscript>
<div class="bar"><p>Point at a patch, touch it, or walk over the picture with the arrow keys: the light is what it
attends to. A click holds the patch, so that layers and heads can be compared.</p>
<label>Light <input type="range" id="light" min="0" max="100" value="85"></label>
<button id="compare" aria-pressed="false">Compare {what} side by side</button></div>
<div id="panels" class="panels"></div>
</main>"""


def score_table(gallery: Gallery) -> Table:
    """Each picture's prediction, and how true each method's map of it is."""
    columns: dict[str, Unit] = {"picture": "", "model": "", "prediction": "", "probability": "share", "method": ""}
    if len(gallery.models) == 1:
        del columns["model"]
    measured = _measured(gallery)
    rows: list[dict[str, Value]] = []
    for view in gallery.views:
        label, share = view.answers[0]
        said: dict[str, Value] = {"picture": view.picture, "model": view.model}
        said |= {"prediction": label, "probability": share}
        for method, score in view.scores.items():
            rows.append({**said, "method": method, **{way: _told(getattr(score, way)) for way in measured}})
    return Table(EACH, columns | dict.fromkeys(measured, ""), rows)


def narrow_table(gallery: Gallery) -> Table:
    """The same for people: what is said of a picture stands in one column, line by line beside the methods."""
    measured = _measured(gallery)
    rows: list[dict[str, Value]] = []
    for view in gallery.views:
        label, share = view.answers[0]
        said = [_short(view.picture), _short(f"{label} {100 * share:.1f} %")]
        said += [_short(view.model)] if len(gallery.models) > 1 else []
        lines = zip_longest(said, view.scores, view.scores.values())
        rows += [
            {"picture": line or "", "method": method} | {way: _told(getattr(score, way, None)) for way in measured}
            for line, method, score in lines
        ]
    return Table(EACH, {"picture": "", "method": "", **dict.fromkeys(measured, "")}, rows)


def _short(name: str) -> str:
    """The end of a long name, which is where a path and a class differ from others."""
    return name if len(name) <= _LINE else f"…{name[1 - _LINE :]}"


def _told(value: float | bool | None) -> Value:
    if isinstance(value, bool):
        return "hit" if value else "miss"
    return value


def mean_table(gallery: Gallery) -> Table:
    """How true each method's maps are, in the mean over the pictures, model by model."""
    columns: dict[str, Unit] = {"model": ""} if len(gallery.models) > 1 else {}
    measured = _measured(gallery)
    rows: list[dict[str, Value]] = []
    for model in gallery.models:
        scores = [view.scores for view in gallery.views if view.model == model]
        for method in scores[0]:
            rows.append({"model": model, "method": method} | {way: _mean(scores, method, way) for way in measured})
    count = len(gallery.pictures)
    title = "How true the maps are" + (f", mean over {count} pictures" if count > 1 else "")
    return Table(title, {**columns, "method": "", **measured}, rows)


def _measured(gallery: Gallery) -> dict[str, Unit]:
    """The measures that some map of a gallery has."""
    every = [score for view in gallery.views for score in view.scores.values()]
    return {way: unit for way, unit in WAYS.items() if any(getattr(score, way) is not None for score in every)}


def _mean(scores: Sequence[Mapping[str, Score]], method: str, way: str) -> float | None:
    known = [float(value) for one in scores if (value := getattr(one[method], way)) is not None]
    return sum(known) / len(known) if known else None


def _scores(gallery: Gallery) -> str:
    means, each = mean_table(gallery), narrow_table(gallery)
    told = (
        "<p>A true map names the pixels that the answer hangs on. Bring pixels back into a blurred picture, the "
        "brightest of the map first, and the probability should rise at once (insertion: more is better); blur them "
        "instead, and it should fall at once (deletion: less is better). Both are areas under the curve of the "
        "probability. “Random” and “centre” know nothing of the model: a map that does not beat them says little.</p>"
    )
    if "shuffled" in _measured(gallery):
        told += (
            "<p>Shuffled is how alike the map stays when the values of every weight change places and the model has "
            "forgotten all: the rank correlation of the two maps, near 0 where a map shows what was learned, and 1 "
            "where it shows the picture alone.</p>"
        )
    if "pointing" in _measured(gallery):
        told += "<p>Pointing is whether the highest point of the map lies on the object, by its mask.</p>"
    if not each.rows:
        return ""
    if len(gallery.views) == 1:
        return _section(means.title, told + section_html(means))
    whole = f"<details><summary>{each.title}</summary>{section_html(each)}</details>"
    return _section(means.title, told + section_html(means) + whole)


def _kept(gallery: Gallery, left_out: str) -> str:
    parts = [*gallery.notes, left_out]
    if any(view.layers for view in gallery.views):
        parts.append(
            f"Weights are kept in {LEVELS + 1} steps, finer where they are small; numbers are rounded by that."
        )
    if any(layer.step > 1 for view in gallery.views for layer in view.layers):
        parts.append(
            "Layers with a fine grid are shown in cells of several patches: the mean over a cell's queries, the sum "
            "over its keys."
        )
    lines = "".join(f"<p>{html.escape(part)}</p>" for part in parts if part)
    return _section("What is kept here", lines) if lines else ""


def _section(title: str, body: str) -> str:
    return f"<section>\n<h2>{html.escape(title)}</h2>\n{body}\n</section>"
