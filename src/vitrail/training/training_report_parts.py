"""The parts of a training report's page, each as HTML: figures, curves, confusions, calibration, pictures, costs."""

import html
import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import yaml
from torch import Tensor

from vitrail.charts import Bin, calibration, percent
from vitrail.report import Facts, Report, Table, Unit, Value, section_html, show
from vitrail.training.evidence import Picture, Rebuilt, Views, left_out
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
    "ap",
    "auc",
    "f1",
    "best_f1",
    "F1",
    "AP",
    "AUC",
)
_MATRIX_MOST = 20  # classes that a matrix with numbers has room for
_COLUMNS_MOST = 5  # that half of the page has room for
_ROWS_MOST = 20  # classes that a page shows before it folds the rest
_SKIPPED_MOST = 100  # broken images that a page lists
MEANING = {  # metric -> its name for people, and what it is
    "top5": ("top-5", "the truth is among the five likeliest"),
    "balanced_accuracy": ("balanced accuracy", "mean of the classes' recalls"),
    "nll": ("NLL", "mean negative log of the true label"),
    "ece": ("ECE", "mean gap of confidence and accuracy"),
    "exact": ("exact match", "every label of an image right, at the thresholds"),
    "label_accuracy": ("label accuracy", "of all labels of all images, at the thresholds"),
    "bce": ("BCE", "mean binary cross-entropy of the labels"),
    "ap": ("AP", "average precision, mean of the labels"),
    "auc": ("AUC", "area under the ROC curve, mean of the labels"),
    "f1": ("F1", "at the thresholds, mean of the labels"),
    "explained": ("explained", "share of the variance of hidden pixels that is rebuilt"),
    "val/explained": ("validation explained", "the best epoch was chosen by it"),
    "val/accuracy": ("validation accuracy", "the best epoch was chosen by it"),
    "val/ap": ("validation AP", "the best epoch was chosen by it"),
}
_UNTOLD = ("images", "best_f1")  # no figure of the result: its thresholds fit the very images it is measured on


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
    seconds, speed = known(rows, "seconds"), known(rows, "images_per_second")
    return {
        **{name: value for name, value in metrics.items() if name not in _UNTOLD},
        **({"training time": duration(sum(seconds))} if seconds else {}),
        **({"images a second": round(median(speed))} if speed else {}),
    }


def class_table(rows: Sequence[Mapping[str, Value]]) -> Table:
    """The figures by class."""
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
    *,
    model: str = "",
) -> str:
    """Title, the result in a sentence, and the figures that matter."""
    tiles = []
    for name, value in facts(metrics, rows).items():
        called, meaning = MEANING.get(name, (name, ""))
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
        + (f'<p class="aside">{html.escape(model)}</p>\n' if model else "")
        + (f'<dl class="tiles">{"".join(tiles)}</dl>' if tiles else "")
    )


def _lead(metrics: Mapping[str, float], images: int | None, rows: History) -> str:
    words = []
    tested = any(name.startswith("val/") for name in metrics)  # else validation is all there is
    new = "that it never learned from" if tested else "that it never learned from but chose its best epoch by"
    if images and "accuracy" in metrics:
        words.append(f"Right on {round(metrics['accuracy'] * images):,} of {images:,} images {new}")
    elif images:
        words.append(f"Evaluated on {images:,} images {new}")
    if words and rows and (seconds := known(rows, "seconds")):
        words.append(f"after {len(rows)} {'epoch' if len(rows) == 1 else 'epochs'} in {duration(sum(seconds))}")
    return ", ".join(words) + "." if words else ""


def notes(sentences: Sequence[str], skipped: Sequence[tuple[str, str]]) -> str:
    """What was chosen and why, and the images that were left out."""
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    listed = f'<ul class="notes">{items}</ul>' if items else ""
    if not skipped:
        return listed
    many, were = (f"{len(skipped):,} images", "were") if len(skipped) > 1 else ("One image", "was")
    table = section_html(left_out("", skipped[:_SKIPPED_MOST]))
    return listed + _folded(f"{many} could not be read and {were} left out", table)


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
    """The figures of each class, the weakest first; of many classes the rest is folded."""
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
    many = " many" if len(names) > _COLUMNS_MOST else ""
    return f'<div class="wide classes{many}">{table}</div>'


def sureness(bins: Sequence[Bin], *, several: bool) -> str:
    """The calibration diagram, and what it says in words: of images, or of the labels where they may have several."""
    total = sum(one.size for one in bins)
    sure = sum(one.size * one.confidence for one in bins) / total
    right = sum(one.size * one.accuracy for one in bins) / total
    verdict = (
        "about as sure as it is right" if abs(sure - right) < 0.02 else "too sure" if sure > right else "too modest"
    )
    if several:
        told = f"On average the model gives a label {percent(sure)}, and {percent(right)} of images have it"
        bar = "A bar is how often labels of one probability were there"
    else:
        told = f"On average the model is {percent(sure)} sure and {percent(right)} right"
        bar = "A bar is how often predictions of one confidence were right"
    return (
        f'<div class="two"><figure>{calibration(bins)}</figure><div>'
        f"<p>{told}: <b>{verdict}</b>.</p>"
        f"<p>{bar}; on the dashed line they keep their word. "
        '<span class="key warm">Orange</span> is how far it was too sure, <span class="key faint">faint blue</span> '
        "how far too modest; the small bars below count predictions.</p>"
        "</div></div>"
    )


def mistakes(pictures: Sequence[Picture]) -> str:
    """Pictures that the model got wrong, the most confident first."""
    figures = "\n".join(mistake_html(picture) for picture in pictures)
    words = "Where the model was surest and wrong: what it said, how sure it was, and what the image is."
    return f'<p>{words}</p>\n<div class="shots">{figures}</div>'


def looks(views: Views | None, reason: str) -> str:
    """Where the model looks, or why there is nothing to see."""
    if views is None:
        return f"<p>{html.escape(reason[:1].upper() + reason[1:])}.</p>"
    figures = "\n".join(view_html(view, views.words) for view in views.shown)
    return f'<p>{html.escape(views.told)}</p>\n<div class="pairs">{figures}</div>'


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


def known(rows: History, name: str) -> list[float]:
    """All finite values of something over the epochs."""
    return [value for row in rows if (value := row.get(name)) is not None and math.isfinite(value)]


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{html.escape(title)}</summary>\n{body}\n</details>"
