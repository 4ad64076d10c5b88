"""The scores of a gallery as tables: picture by picture, and mean over pictures."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from vitrail.explain.page.gallery import Gallery, View
from vitrail.explain.scoring.map_scores import Score
from vitrail.report import Report, Section, Table, Text, Unit, Value

BY_PICTURE = "Picture by picture"
_WIDTH = 22  # characters of a name in a narrow table


def score_table(gallery: Gallery) -> Table:
    """The answer for each picture, and the scores of each method's map."""
    columns: dict[str, Unit] = {"picture": "", "model": "", "answer": "", "target": "", "score": "", "method": ""}
    if len(gallery.models) == 1:
        del columns["model"]
    rows: list[dict[str, Value]] = []
    for view in gallery.views:
        common: dict[str, Value] = {"picture": view.picture, "model": view.model, "answer": view.answer}
        common |= {"target": view.target, "score": view.score}
        for method, score in view.scores.items():
            rows.append({**common, "method": method, **{name: _value(score, name) for name in gallery.measured}})
        if not view.scores:
            rows += [{**common, "method": method} for method in view.maps]
    return Table(BY_PICTURE, columns | dict.fromkeys(gallery.measured, ""), rows)


def narrow_table(gallery: Gallery) -> Table:
    """The same for a terminal: picture, answer and model are in one column, line by line beside the methods."""
    rows: list[dict[str, Value]] = []
    for view in gallery.views:
        lines = [_shorten(view.picture), _clip(_explained(view))]
        lines += [_shorten(view.model)] if len(gallery.models) > 1 else []
        methods = list(view.scores or view.maps)
        for line, method in zip_longest(lines, methods):
            score = view.scores.get(method) if method else None
            values = {name: _value(score, name) for name in gallery.measured}
            rows.append({"picture": line or "", "method": method} | values)
    return Table(BY_PICTURE, {"picture": "", "method": "", **dict.fromkeys(gallery.measured, "")}, rows)


def mean_table(gallery: Gallery) -> Table:
    """The scores of each method, mean over pictures, model by model."""
    columns: dict[str, Unit] = {"model": ""} if len(gallery.models) > 1 else {}
    units: dict[str, Unit] = {name: "share" if name == "pointing" else "" for name in gallery.measured}
    rows: list[dict[str, Value]] = []
    for model in gallery.models:
        scores = [view.scores for view in gallery.views if view.model == model]
        for method in scores[0]:
            means = {name: _mean(scores, method, name) for name in gallery.measured}
            rows.append({"model": model, "method": method} | means)
    count = len(gallery.pictures)
    title = "How faithful the maps are" + (f", mean over {count} pictures" if count > 1 else "")
    return Table(title, {**columns, "method": "", **units}, rows)


def _explained(view: View) -> str:
    """The output that is explained and its value, where the answer names it."""
    return next((f"{bar.label} {bar.text}" for bar in view.bars if bar.label == view.target), view.target)


def _clip(text: str) -> str:
    """The beginning of a long text."""
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"


def _shorten(name: str) -> str:
    """The end of a long name: paths and names of outputs differ there."""
    return name if len(name) <= _WIDTH else f"…{name[1 - _WIDTH :]}"


def _value(score: Score | None, name: str) -> Value:
    value = None if score is None else getattr(score, name)
    return ("hit" if value else "miss") if isinstance(value, bool) else value


def _mean(scores: Sequence[Mapping[str, Score]], method: str, name: str) -> float | None:
    values = [float(value) for one in scores if method in one and (value := getattr(one[method], name)) is not None]
    return sum(values) / len(values) if values else None


def summary(gallery: Gallery, *, narrow: bool) -> Report:
    """A gallery without pictures: answers, and how faithful each method's map is; `narrow` fits a terminal."""
    sections: list[Section] = [narrow_table(gallery) if narrow else score_table(gallery)]
    if len(gallery.pictures) > 1 and gallery.measured:
        sections.append(mean_table(gallery))
    missing = dict.fromkeys(f"{view.model}: {view.missing}" for view in gallery.views if view.missing)
    notes = dict.fromkeys(view.note for view in gallery.views if view.note)
    if missing:
        sections.append(Text("Attention", "\n".join(missing)))
    if notes:
        sections.append(Text("Scores", "\n".join(notes)))
    return Report(gallery.title, tuple(sections))
