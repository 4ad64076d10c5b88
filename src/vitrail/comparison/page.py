"""The report of a comparison: the verdict first, then settings, curves, differences by class, and cost."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import isfinite, isnan
from typing import Any

from vitrail.comparison.by_image import Key
from vitrail.comparison.difference import LEVEL, Difference
from vitrail.comparison.over_seeds import CHANCE, OverSeeds
from vitrail.comparison.result import Compared, Pair
from vitrail.report import Group, Metric, Picture, Report, Section, Table, Text, Unit, Value, show
from vitrail.report.charts_series import COLOURS, Series, series
from vitrail.report.metric import show_interval
from vitrail.timing import machine

_NAMED = 4  # runs that a title names, and of which each pair gets a sentence
_OPEN = 12  # rows of a table by class that a page shows before it folds the rest
_LOSS = Metric("loss", higher=False)


def report(found: Compared) -> Report:
    """Everything, in the order in which people ask."""
    *all_but_last, last = [run.name for run in found.runs]
    names = f"{', '.join(all_but_last)} and {last}" if len(all_but_last) < _NAMED else f"{len(found.runs)} runs"
    sections = [
        Text("", "\n".join(sentences(found))),
        _results(found),
        *_pairs(found),
        *_over_seeds(found),
        _settings(found),
        *_curves(found),
        *_others(found),
        *_parts(found),
        _costs(found),
        Text("Notes", "\n".join(f"- {note}" for note in _notes(found))),
    ]
    return Report(f"{names}, compared on {found.images.about}", tuple(sections))


def sentences(found: Compared) -> list[str]:
    """The verdict of each pair, in words."""
    metric = found.metrics[found.best]
    together = [_together(found, one, metric) for one in found.over_seeds]
    told = [f"{_verdict(found, pair, metric)}{_by_chance(found, pair)}" for pair in _told(found, metric)]
    more = len(found.pairs) - len(told)
    return [*together, *told, *([f"The other {more} pairs are in the table below."] if more else []), *_seeds(found)]


def _told(found: Compared, metric: Metric) -> Sequence[Pair]:
    """The pairs that get a sentence: all, or those with the best of many runs."""
    if len(found.runs) <= _NAMED or not found.resamples:
        return found.pairs
    known = [(run, values[found.best]) for run, values in enumerate(found.values) if not isnan(values[found.best])]
    best = max(known, key=lambda one: one[1] if metric.higher else -one[1], default=(0, 0.0))[0]
    return [pair for pair in found.pairs if best in (pair.first, pair.second)]


def _seeds(found: Compared) -> Iterator[str]:
    """A sentence where nothing but chance makes all runs differ."""
    if found.settings.keys() <= CHANCE.keys():
        differ = f"differ in {_chance(found.settings)} alone" if found.settings else "have the same settings"
        yield f"These runs {differ}: the difference is what chance in training makes."


def _together(found: Compared, one: OverSeeds, metric: Metric) -> str:
    """What runs with several seeds say of their settings."""
    first, second = (_names(found, runs) for runs in (one.first, one.second))
    means = [show(value, metric.unit) for value in one.means]
    if one.better is None:
        p = "" if one.change.p is None else f" (p {_p(one.change.corrected)})"
        return (
            f"Over seeds, the settings of {first} (mean {metric.title} {means[0]}) and of {second} ({means[1]}) are "
            f"not shown to differ{p}."
        )
    if (one.better == "second") == metric.higher:
        first, second, means = second, first, means[::-1]
    return (
        f"Over seeds, the settings of {first} are better than those of {second}: mean {metric.title} {means[0]} "
        f"against {means[1]} (p {_p(one.change.corrected)})."
    )


def _names(found: Compared, runs: Sequence[int]) -> str:
    *all_but_last, last = [found.runs[run].name for run in runs]
    return f"{', '.join(all_but_last)} and {last}"


def _by_chance(found: Compared, pair: Pair) -> str:
    """A sentence where nothing but chance makes two of several runs differ."""
    differ = {name for name, values in found.settings.items() if values[pair.first] != values[pair.second]}
    alone = differ and differ <= CHANCE.keys() and not found.settings.keys() <= CHANCE.keys()
    return f" They differ in {_chance(differ)} alone: training again may reverse this." if alone else ""


def _chance(settings: Collection[str]) -> str:
    """Settings that no one chooses for their effect, in words."""
    return " and ".join(words for name, words in CHANCE.items() if name in settings)


def _verdict(found: Compared, pair: Pair, metric: Metric) -> str:
    better = found.better(pair)
    first, second = (pair.first, pair.second) if better != pair.second else (pair.second, pair.first)
    names = [found.runs[index].name for index in (first, second)]
    values = [show(found.values[index][found.best], metric.unit) for index in (first, second)]
    if pair.best.p is None:
        told = f"{metric.title} {values[0]} and {values[1]}"
        return f"{names[0]} and {names[1]}: {told}; whether the difference is real is not known."
    p = f"p {_p(pair.best.corrected)}"
    if better is None:
        told = f"{metric.title} {values[0]} and {values[1]}"
        return f"{names[0]} and {names[1]}: {told}; no real difference is shown ({p})."
    return f"{names[0]} is better than {names[1]}: {metric.title} {values[0]} against {values[1]} ({p})."


def _p(value: float | None) -> str:
    if value is None:
        return "not known"
    return f"{value:.2g}" if value >= 0.0001 else "below 0.0001"


def _change(value: float, metric: Metric) -> str:
    """A difference with its sign; of shares in points."""
    return f"{100 * value:+.1f}" if metric.unit == "share" else f"{value:+.4g}"


def _ends(one: Difference, metric: Metric) -> str | None:
    if one.interval is None:
        return None
    if metric.unit == "share":
        low, high = (f"{100 * end:+.1f}" for end in one.interval)
        return f"{low} to {high}"
    return " to ".join(f"{end:+.4g}" for end in one.interval)


def _results(found: Compared) -> Table:
    """A row for each run, a column for each metric."""
    keys = [key for key in found.values[0] if not key[1]]
    best = found.metrics[found.best].title
    columns: dict[str, Unit] = {"run": "", best: found.metrics[found.best].unit, "95 % interval": ""}
    columns |= {found.metrics[key].title: found.metrics[key].unit for key in keys}
    rows: list[dict[str, Value]] = []
    for run, values, interval in zip(found.runs, found.values, found.intervals, strict=True):
        row: dict[str, Value] = {"run": run.name}
        row["95 % interval"] = None if interval is None else show_interval(interval, found.metrics[found.best].unit)
        rows.append(row | {found.metrics[key].title: _known(values.get(key)) for key in keys})
    return Table("Result", columns, rows)


def _over_seeds(found: Compared) -> Iterator[Section]:
    """The tests of settings, where runs have the same ones with several seeds."""
    metric = found.metrics[found.best]
    rows: list[dict[str, Value]] = [
        {
            "first": _names(found, one.first),
            "second": _names(found, one.second),
            "means": " and ".join(show(value, metric.unit) for value in one.means),
            "difference": _change(one.change.value, metric),
            "95 % interval": _ends(one.change, metric),
            "p": _p(one.change.p),
            "p, corrected": _p(one.change.corrected),
        }
        for one in found.over_seeds
    ]
    if rows:
        text = "Welch's t-test over runs: it counts how much training with another seed changes, not which images."
        yield Table(f"Settings over seeds: {metric.title}", dict.fromkeys(rows[0], ""), rows)
        yield Text("", text)


def _known(value: float | None) -> float | None:
    return None if value is None or isnan(value) else value


def _pairs(found: Compared) -> Iterator[Section]:
    """The tests of all pairs."""
    if not found.resamples:
        return
    metric, rows = found.metrics[found.best], []
    for pair in found.pairs:
        better = found.better(pair)
        row: dict[str, Value] = {
            "first": found.runs[pair.first].name,
            "second": found.runs[pair.second].name,
            "difference": _change(pair.best.value, metric),
            "95 % interval": _ends(pair.best, metric),
            "p": _p(pair.best.p),
            "p, corrected": _p(pair.best.corrected),
            "better": "not shown" if better is None else found.runs[better].name,
        }
        if pair.discordant is not None:
            row |= {"only first right": pair.discordant.first, "only second right": pair.discordant.second}
            row["McNemar p"] = _p(pair.discordant.p)
        rows.append(row)
    if len(rows) == 1:
        rows = [{name: value for name, value in row.items() if name != "p, corrected"} for row in rows]
    columns: dict[str, Unit] = dict.fromkeys(rows[0], "")
    yield Table(f"Is the difference in {metric.title} real?", columns, rows)


def _settings(found: Compared) -> Section:
    rows: list[dict[str, Value]] = [
        {"setting": key, **{run.name: value for run, value in zip(found.runs, values, strict=True)}}
        for key, values in found.settings.items()
    ]
    if not rows:
        return Text("Settings that differ", "None: the runs have the same settings.")
    columns: dict[str, Unit] = dict.fromkeys(("setting", *(run.name for run in found.runs)), "")
    return Table("Settings that differ", columns, rows)


def _curves(found: Compared) -> Iterator[Section]:
    """The curves of all runs over each other: the best metric and the losses."""
    shown = found.runs[: len(COLOURS)]
    wanted = {
        f"val/{found.best[0]}": (found.metrics[found.best].title, "validation"),
        "train/loss": (_LOSS.title, "training"),
        "val/loss": (_LOSS.title, "validation"),
    }
    charts: list[Section] = []
    for column, (title, part) in wanted.items():
        lines = [Series(run.name, points(run.history, column)) for run in shown]
        lines = [line for line in lines if line.points]
        if lines:
            name = f"{part} {title}"
            chart = series(name, lines, x="epoch", y=title)
            charts.append(Picture(f"{name[:1].upper()}{name[1:]}", chart, _in_words(lines)))
    if charts:
        left = len(found.runs) - len(shown)
        text = [Text("", f"The first {len(shown)} runs; {left} more are left out.")] if left else []
        yield Group("Curves", (*text, Group("", tuple(charts), 2)))


def points(rows: Sequence[Mapping[str, Any]], column: str) -> list[tuple[float, float]]:
    """A column of a history by epochs, where it is known."""
    found = [(float(row.get("epoch") or index + 1), row.get(column)) for index, row in enumerate(rows)]
    return [(epoch, float(value)) for epoch, value in found if value is not None and isfinite(value)]


def _in_words(lines: Sequence[Series]) -> str:
    """The ends of curves, which is all that a terminal shows of them."""
    ways = [[f"{value:.4g}" for _, value in (line.points[0], line.points[-1])] for line in lines]
    return "; ".join(f"{line.name} {' to '.join(dict.fromkeys(way))}" for line, way in zip(lines, ways, strict=True))


def _others(found: Compared) -> Iterator[Section]:
    """The metrics that did not choose the best epoch, against the first run."""
    rows = [_row(found, run, key, one) for run, changes in found.others.items() for key, one in changes.items()]
    if rows:
        yield Table(f"Other metrics, against {found.runs[0].name}", dict.fromkeys(rows[0], ""), rows, folded=True)


def _row(found: Compared, run: int, key: Key, one: Difference) -> dict[str, Value]:
    metric = found.metrics[key]
    return {
        "run": found.runs[run].name,
        "metric": metric.title,
        "first": _shown(found.values[0].get(key), metric),
        "this": _shown(found.values[run].get(key), metric),
        "difference": _change(one.value, metric) if isfinite(one.value) else None,
        "95 % interval": _ends(one, metric),
        "p, corrected": _p(one.corrected),
        "real": "yes" if one.real else "not shown",
    }


def _shown(value: float | None, metric: Metric) -> str | None:
    return None if value is None or isnan(value) else show(value, metric.unit)


def _parts(found: Compared) -> Iterator[Section]:
    """Each class, label or number, the largest differences first."""
    for run, changes in found.parts.items():
        ordered = sorted(changes.items(), key=lambda pair: -abs(pair[1].value) if isfinite(pair[1].value) else 1.0)
        rows = [{"of": key[1], **_row(found, run, key, one)} for key, one in ordered]
        units: set[Unit] = {found.metrics[key].unit for key in changes}
        if rows:
            columns: dict[str, Unit] = {name: "" for name in rows[0] if name != "run"}
            if len(units) == 1:  # numbers of one kind are aligned
                columns |= dict.fromkeys(("first", "this"), units.pop())
                numbers = [(found.values[0].get(key), found.values[run].get(key)) for key, _ in ordered]
                for row, (first, this) in zip(rows, numbers, strict=True):
                    row |= {"first": _known(first), "this": _known(this)}
            title = f"{found.runs[run].name} against {found.runs[0].name}, one by one"
            yield Table(title, columns, rows, fold_after=_OPEN)


def _costs(found: Compared) -> Section:
    rows: list[dict[str, Value]] = []
    for run, cost in zip(found.runs, found.costs, strict=True):
        rows.append({
            "run": run.name,
            "parameters": cost.parameters,
            "MACs": cost.macs,
            "weights": cost.size,
            "ms a training step": None if cost.step is None else _rounded(1000 * cost.step),
            "s of training": None if cost.training is None else _rounded(cost.training),
            "ms an image, here": round(1000 * cost.answer, 2),
        })  # fmt: skip
    units: dict[str, Unit] = dict.fromkeys(rows[0], "")
    units |= {"parameters": "si", "MACs": "si", "weights": "bytes"}
    where = found.runs[0].model.device
    text = (
        "MACs are those of the backbone for one image. Training was timed where each run was made; an image was "
        f"timed now, in turns, alone, on {where} ({machine()})."
    )
    return Group("Cost", (Table("", units, rows), Text("", text)))


def _rounded(value: float) -> float:
    """With a tenth below a thousand, whole above, so that no table shows it as a power of ten."""
    return round(value, 1) if value < 1000 else round(value)


def _notes(found: Compared) -> Iterator[str]:
    yield from filter(None, (run.missing for run in found.runs))
    yield from found.notes
    if found.resamples:
        how = "images" if found.units == len(found.images.dataset) else f"{found.units} random groups of the images"
        yield (
            f"Intervals and p: {found.resamples:,} resamples of {how}, the same for all runs, corrected for their "
            "bias. The difference is the second run less the first. Where resamples are too few to tell a small p, it "
            "is that of a normal curve with their spread. A difference is called real where p, corrected for the "
            f"number of comparisons in its table (Holm), is below {LEVEL:g}."
        )
        if any(metric.unit == "share" for metric in found.metrics.values()):
            yield "Differences of percentages are in points."
        yield (
            "The test is about other images of the same kind, not about other seeds: a run that is trained again with "
            "another seed may differ by more."
        )
    if any(pair.discordant is not None for pair in found.pairs):
        yield "McNemar: the exact test on images that one run alone has right; it decides for shares of right images."
