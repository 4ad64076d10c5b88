"""The parts of a training report's page, each as HTML: figures, curves, confusions, calibration, pictures, costs."""

import html
import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import yaml
from torch import Tensor

from vitrail.charts import Bin, Curve, calibration, curves, percent, plain
from vitrail.report import Facts, Report, Table, Unit, Value, section_html, show
from vitrail.training.evidence import Picture, Rebuilt, View
from vitrail.training.training_report_pictures import heat_html, mistake_html, rebuilt_html, view_html

History = Sequence[Mapping[str, float | None]]

_SHARES = (
    "accuracy",
    "top5",
    "balanced_accuracy",
    "label_accuracy",
    "exact",
    "ece",
    "waiting",
    "explained",
    "recall",
    "precision",
    "F1",
)
_MATRIX_MOST = 20  # classes that a matrix with numbers has room for
_ROWS_MOST = 20  # classes that a page shows before it folds the rest
_MEANING = {  # metric -> its name for people, and what it is
    "top5": ("top-5", "the truth is among the five likeliest"),
    "balanced_accuracy": ("balanced accuracy", "mean of the classes' recalls"),
    "nll": ("NLL", "mean negative log of the true label"),
    "ece": ("ECE", "mean gap of confidence and accuracy"),
    "exact": ("exact match", "every label of an image right"),
    "label_accuracy": ("label accuracy", "of all labels of all images"),
    "bce": ("BCE", "mean binary cross-entropy of the labels"),
    "ap": ("AP", "average precision, mean of the labels"),
    "auc": ("AUC", "area under the ROC curve, mean of the labels"),
    "f1": ("F1", "mean of the labels"),
    "explained": ("explained", "share of the variance of hidden pixels that is rebuilt"),
    "val/explained": ("validation explained", "the best epoch was chosen by it"),
    "val/accuracy": ("validation accuracy", "the best epoch was chosen by it"),
    "val/ap": ("validation AP", "the best epoch was chosen by it"),
    "best_f1": ("best F1", "with the best threshold of each label"),
}
_FOLLOWED = {  # beside the losses and metrics: name in the history -> title and what the curve is called
    "lr": ("Learning rate", ""),
    "images_per_second": ("Speed", "images a second"),
    "waiting": ("Waiting for data", "share of the time"),
}
_SPLITS = {"train": "training", "val": "validation"}
_LOSSES = ("nll", "bce")  # metrics that stand beside the training loss where there is no validation loss


def unit(name: str) -> Unit:
    """How the value of a metric or a column is shown."""
    return "share" if name.rpartition("/")[2] in _SHARES else ""


def duration(seconds: float) -> str:
    """A time as people say it: 48 s, 7 min 5 s, 3 h 20 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def facts(metrics: Mapping[str, float], rows: History) -> dict[str, Value]:
    """Metrics, the time that training took, and its usual speed."""
    seconds, speed = _known(rows, "seconds"), _known(rows, "images_per_second")
    return {
        **{name: value for name, value in metrics.items() if name != "images"},
        **({"training time": duration(sum(seconds))} if seconds else {}),
        **({"images a second": round(median(speed))} if speed else {}),
    }


def class_table(rows: Sequence[Mapping[str, Value]]) -> Table:
    """Recall, precision and F1 by class."""
    return Table("Classes", {name: unit(name) for name in rows[0]}, rows)


def confusion_table(rows: Sequence[Mapping[str, Value]]) -> Table:
    """What was taken for what, how often."""
    return Table("Confusions", {"is": "", "taken for": "", "images": "", "of its class": "share"}, rows)


def layout(head: str, blocks: Sequence[tuple[str, str]]) -> str:
    """The head, links to the sections, and the sections."""
    links = "".join(f'<li><a href="#{_anchor(title)}">{html.escape(title)}</a></li>' for title, _ in blocks)
    sections = "\n".join(
        f'<section id="{_anchor(title)}">\n<h2>{html.escape(title)}</h2>\n{body}\n</section>' for title, body in blocks
    )
    nav = f'<nav aria-label="Sections"><ul>{links}</ul></nav>' if blocks else ""
    return f"<header>\n{head}\n{nav}\n</header>\n<main>\n{sections}\n</main>"


def head(
    title: str,
    metrics: Mapping[str, float],
    intervals: Mapping[str, tuple[float, float]],
    rows: History,
    images: int | None,
) -> str:
    """Title, the result in a sentence, and the figures that matter."""
    tiles = []
    for name, value in facts(metrics, rows).items():
        called, meaning = _MEANING.get(name, (name, ""))
        if name == "training time":
            meaning = f"{len(rows)} epochs"
        if name in intervals:
            low, high = intervals[name]
            meaning = f"95 % interval: {100 * low:.1f} to {100 * high:.1f} %"
        shown = show(value, unit(name))
        tiles.append(
            f"<div><dt>{html.escape(called)}</dt><dd>{html.escape(shown)}<small>{html.escape(meaning)}</small></dd></div>"
        )
    lead = _lead(metrics, images, rows)
    return (
        f'<p class="over">Training report</p>\n<h1>{html.escape(title)}</h1>\n'
        + (f'<p class="lead">{html.escape(lead)}</p>\n' if lead else "")
        + (f'<dl class="tiles">{"".join(tiles)}</dl>' if tiles else "")
    )


def _lead(metrics: Mapping[str, float], images: int | None, rows: History) -> str:
    words = []
    if images and "accuracy" in metrics:
        words.append(
            f"Right on {round(metrics['accuracy'] * images):,} of {images:,} images that it never learned from"
        )
    elif images:
        words.append(f"Evaluated on {images:,} images that it never learned from")
    if words and rows and (seconds := _known(rows, "seconds")):
        words.append(f"after {len(rows)} epochs in {duration(sum(seconds))}")
    return ", ".join(words) + "." if words else ""


def notes(sentences: Sequence[str], skipped: Sequence[tuple[str, str]]) -> str:
    """What was chosen and why, and the images that were left out."""
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    listed = f'<ul class="notes">{items}</ul>' if items else ""
    if not skipped:
        return listed
    rows = [{"image": name, "reason": reason} for name, reason in skipped]
    many = f"{len(skipped):,} images" if len(skipped) > 1 else "One image"
    table = section_html(Table("", {"image": "", "reason": ""}, rows[:100]))
    return listed + _folded(f"{many} could not be read and left out", table)


def history(rows: History, best_metric: str) -> str:
    """A chart for each thing followed over the epochs: losses and metrics first, training beside validation."""
    charts: dict[str, dict[str, str]] = {
        "loss": {},
        best_metric: {},
    }  # title -> name in the history -> name of the curve
    for name in dict.fromkeys(name for row in rows for name in row):
        split, _, metric = name.partition("/")
        if split in _SPLITS and metric not in ("", "images"):
            charts.setdefault(metric, {})[name] = _SPLITS[split]
    for metric in _LOSSES:
        if metric in charts and "val/loss" not in charts["loss"]:
            charts["loss"] |= {f"val/{metric}": f"validation {_MEANING[metric][0]}"}
            del charts[metric]
    first = dict.fromkeys(("loss", best_metric))
    large = "".join(_chart(metric, charts[metric], rows, best=metric == best_metric) for metric in first)
    small = "".join(_chart(metric, names, rows, small=True) for metric, names in charts.items() if metric not in first)
    small += "".join(_chart(title, {name: called}, rows, small=True) for name, (title, called) in _FOLLOWED.items())
    return "".join(
        f'<div class="charts{cls}">{figures}</div>' for cls, figures in (("", large), (" small", small)) if figures
    )


def _chart(title: str, names: Mapping[str, str], rows: History, *, best: bool = False, small: bool = False) -> str:
    series = []
    for name, called in names.items():
        points = [(row.get("epoch") or index + 1, row.get(name)) for index, row in enumerate(rows)]
        if _known(rows, name):
            series.append(Curve(called, points))
    if not series:
        return ""
    name = next(iter(names))
    written = percent if unit(name) == "share" else plain
    mark, words, floor = None, "", 0.0 if name in _FOLLOWED else None
    if best:
        mark = max(((x, y) for x, y in series[-1].points if y is not None and math.isfinite(y)), key=lambda at: at[1])
        words = f", best {written(mark[1])} at epoch {mark[0]:g}"
    if len(series) == 1 and series[0].name:
        words = f", {series[0].name}{words}"
    keys = [f'<span class="key {cls}">{curve.name}</span>' for cls, curve in zip("ab", series, strict=False)]
    legend = "".join(keys) if len(keys) > 1 else ""
    svg = curves(title, series, show=written, mark=mark, floor=floor, small=small)
    called = _MEANING.get(title, (title, ""))[0]
    shown = html.escape(called[:1].upper() + called[1:])
    return f"<figure><figcaption><b>{shown}</b>{html.escape(words)} {legend}</figcaption>\n{svg}\n</figure>"


def matrix(confusion: Tensor, classes: Sequence[str], worst: Sequence[Mapping[str, Value]]) -> str:
    """The confusion matrix, with numbers where there is room, and the most frequent mistakes."""
    table = section_html(confusion_table(worst)) if worst else "<p>Nothing: every image is right.</p>"
    if len(classes) > _MATRIX_MOST:
        told = f"Confusion matrix of {len(classes)} classes, rows the truth, columns the prediction"
        key = f"{told}; blue is right, orange is wrong."
        heat = f"<figure>{heat_html(confusion, told)}<figcaption>{key}</figcaption></figure>"
        return f'<div class="two">{heat}<div>{table}</div></div>'
    columns = "".join(f'<th scope="col"><span>{html.escape(name)}</span></th>' for name in classes)
    lines = []
    for row, name in enumerate(classes):
        counts = confusion[row].tolist()
        cells = "".join(_count(count, sum(counts), row, column, classes) for column, count in enumerate(counts))
        lines.append(f'<tr><th scope="row">{html.escape(name)}</th>{cells}</tr>')
    return (
        "<p>Rows are the truth, columns what the model said; blue is right, orange is wrong.</p>\n"
        f'<div class="beside"><div class="wide"><table class="matrix"><thead><tr><td></td>{columns}</tr></thead>\n'
        f"<tbody>{''.join(lines)}</tbody></table></div>\n<div>{table}</div></div>"
    )


def _count(count: int, total: int, row: int, column: int, classes: Sequence[str]) -> str:
    """A cell of the matrix, the stronger the larger its share of the row."""
    if not count:
        return '<td class="none">·</td>'
    share = count / total
    strength = share if row == column else math.sqrt(share)  # mistakes are rare: the root makes them visible
    words = f"{classes[row]} taken for {classes[column]}" if row != column else f"{classes[row]}, right"
    cls = "right" if row == column else "wrong"
    told = html.escape(f"{words}: {count:,} of {total:,} ({percent(share)})")
    return f'<td class="{cls}" style="--share:{strength:.2f}" title="{told}">{count:,}</td>'


def classes(rows: Sequence[Mapping[str, Value]]) -> str:
    """Recall, precision and F1 of each class, the weakest first; of many classes the rest is folded."""
    ordered = sorted(rows, key=lambda row: (row["F1"] is None, row["F1"] or 0.0))
    body = _class_rows(ordered[:_ROWS_MOST])
    if len(ordered) <= _ROWS_MOST:
        return body
    return body + _folded(f"The other {len(ordered) - _ROWS_MOST} classes", _class_rows(ordered[_ROWS_MOST:]))


def _class_rows(rows: Sequence[Mapping[str, Value]]) -> str:
    names = list(rows[0])
    heads = "".join(f'<th scope="col"{"" if name == "class" else _NUMBER}>{html.escape(name)}</th>' for name in names)
    lines = []
    for row in rows:
        cells = []
        for name in names:
            value = row[name]
            shown = html.escape(show(value, unit(name)))
            if name == "class":
                cells.append(f'<th scope="row">{shown}</th>')
            elif unit(name) == "share" and isinstance(value, float):
                cells.append(f'<td class="number meter" style="--share:{value:.3f}">{shown}</td>')
            else:
                cells.append(f"<td{_NUMBER}>{shown}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return f'<div class="wide classes">{table}</div>'


def sureness(bins: Sequence[Bin]) -> str:
    """The calibration diagram, and what it says in words."""
    total = sum(one.size for one in bins)
    sure = sum(one.size * one.confidence for one in bins) / total
    right = sum(one.size * one.accuracy for one in bins) / total
    verdict = (
        "about as sure as it is right" if abs(sure - right) < 0.02 else "too sure" if sure > right else "too modest"
    )
    return (
        f'<div class="two"><figure>{calibration(bins)}</figure><div>'
        f"<p>On average the model is {percent(sure)} sure and {percent(right)} right: <b>{verdict}</b>.</p>"
        "<p>A bar is how often predictions of one confidence were right; on the dashed line they keep their word. "
        '<span class="key warm">Orange</span> is how far it was too sure, <span class="key faint">faint blue</span> '
        "how far too modest; the small bars below count predictions.</p>"
        "</div></div>"
    )


def mistakes(pictures: Sequence[Picture]) -> str:
    """Pictures that the model got wrong, the most confident first."""
    figures = "\n".join(mistake_html(picture) for picture in pictures)
    words = "Where the model was surest and wrong: what it said, how sure it was, and what the image is."
    return f'<p>{words}</p>\n<div class="shots">{figures}</div>'


def looks(shown: Sequence[View], reason: str) -> str:
    """Where the class token looks, or why there is nothing to see."""
    if not shown:
        return f"<p>{html.escape(reason[:1].upper() + reason[1:])}.</p>"
    figures = "\n".join(view_html(view) for view in shown)
    words = (
        "What the class token attends to in the last block, mean of the heads, stretched to the range of each picture. "
        "It shows where information was taken from, not why a class was chosen."
    )
    return f'<p>{words}</p>\n<div class="pairs">{figures}</div>'


def rebuilding(shown: Sequence[Rebuilt]) -> str:
    """What a model makes of pictures of which most is hidden."""
    figures = "\n".join(rebuilt_html(one) for one in shown)
    words = (
        "The picture, the patches of it that the model saw, and what it made of the others. Where it learned patches "
        "less their mean and contrast, these two are taken from the truth."
    )
    return f'<p>{words}</p>\n<div class="pairs">{figures}</div>'


def cost(report: Report) -> str:
    """What the model costs: the first table and facts open, the rest folded."""
    opened, rest = list(report.sections[:2]), list(report.sections[2:])
    body = "\n".join(section_html(section) for section in opened)
    return f'<div class="cost">{body}</div>' + "".join(_folded(one.title, section_html(one)) for one in rest)


def again(command: str, recipe: Mapping[str, Any], environment: Mapping[str, Value]) -> str:
    """The command that ran, the recipe and the environment."""
    found: list[str] = []
    if command:
        found.append(f'<pre class="command"><code>{html.escape(command)}</code></pre>')
    if recipe:
        written = yaml.safe_dump(
            _plain(recipe), sort_keys=False, allow_unicode=True, default_flow_style=None, width=100
        )
        found.append(_folded("The recipe", f"<pre><code>{html.escape(written)}</code></pre>"))
    if environment:
        found.append(_folded("The environment", section_html(Facts("", environment))))
    return "\n".join(found)


_NUMBER = ' class="number"'


def _plain(value: Any) -> Any:
    """Dicts, lists, text and numbers, as YAML can write them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def _known(rows: History, name: str) -> list[float]:
    return [value for row in rows if (value := row.get(name)) is not None and math.isfinite(value)]


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{html.escape(title)}</summary>\n{body}\n</details>"
