"""Advice in sentences, each with the measured rows that it rests on, and the commands to type."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from vitrail.advice.choose import (
    NEAR,
    Candidate,
    Evidence,
    Judged,
    Limits,
    best_engine,
    excess,
    in_ms,
    per_image,
    slowness,
    timed_rows,
)
from vitrail.advice.facts import DataFacts
from vitrail.advice.networks import BUSY
from vitrail.advice.rows import Row, machines
from vitrail.advice.tables import candidates_table, data_section, engine_of, rows_table
from vitrail.data.audit.doctor import FORWARDS
from vitrail.report import Code, Report, Section, Text, show
from vitrail.report.metric import show_interval
from vitrail.report.values import duration
from vitrail.strict_json import to_json

_FAR = 2.0  # distance to the nearest set from which on the data are unlike all that were measured
_OUT = "runs/advised"
_MINUTES = 30.0  # of a search, where no limit is given
_WORTH = 1.1  # times eager from which on an engine is worth its trouble


@dataclass(frozen=True)
class Sentence:
    """A piece of advice, the rows it rests on, and whether the case lies outside of what was measured."""

    text: str
    rows: tuple[Row, ...] = ()
    outside: bool = False


@dataclass(frozen=True, repr=False, kw_only=True)
class Advice:
    """What to train for some data and a device; `choice` is None where nothing that was measured keeps the limits."""

    facts: DataFacts
    device: str
    limits: Limits
    ranked: Sequence[Judged]  # the best first
    sentences: Sequence[Sentence]
    commands: Sequence[str]

    @property
    def choice(self) -> Judged | None:
        """What is advised."""
        return self.ranked[0] if self.ranked and self.ranked[0].fits else None

    def __repr__(self) -> str:
        chosen = "nothing that was measured" if self.choice is None else self.choice.candidate.name
        return f"Advice({self.facts.source}: {chosen}; {'; '.join(self.commands[:1])})"

    def report(self) -> Report:
        """Facts, advice, the rows that it rests on, what else there is, and the commands."""
        rows = list(dict.fromkeys(_key(row) for one in self.sentences for row in one.rows))
        numbers = {key: number for number, key in enumerate(rows, start=1)}
        by_key = {_key(row): row for one in self.sentences for row in one.rows}
        lines = [_line(one, numbers) for one in self.sentences]
        sections: list[Section] = [
            data_section(self.facts),
            Text("Advice", "\n".join(f"- {line}" for line in lines)),
            Code("Commands", "\n".join(self.commands) or "none"),
            candidates_table(self.ranked),
        ]
        if rows:
            sections.append(rows_table([by_key[key] for key in rows]))
        return Report(f"Advice for {self.facts.source} on {self.device}", tuple(sections))

    def to_html(self, path: str | Path) -> str:
        """The report as one HTML file."""
        return self.report().to_html(path)

    def to_json(self) -> str:
        """Everything as plain data."""
        return to_json({
            "facts": vars(self.facts),
            "device": self.device,
            "limits": vars(self.limits),
            "choice": None if self.choice is None else self.choice.candidate.name,
            "candidates": [
                {
                    "name": one.candidate.name, "merit": one.merit, "ms": one.latency,
                    "by": engine_of(one), "mib": one.memory, "training_seconds": one.seconds,
                    "beyond_limits": list(one.too_much),
                }
                for one in self.ranked
            ],
            "sentences": [
                {"text": one.text, "outside": one.outside, "rows": [vars(row) for row in one.rows]}
                for one in self.sentences
            ],
            "commands": list(self.commands),
        }, indent=2)  # fmt: skip


def _key(row: Row) -> tuple[str, str, str, str]:
    return row.kind, row.of, row.set, row.text()


def _line(one: Sentence, numbers: dict[tuple[str, str, str, str], int]) -> str:
    marks = ", ".join(dict.fromkeys(str(numbers[_key(row)]) for row in one.rows))
    outside = " Outside of what was measured." if one.outside else ""
    return f"{one.text}{outside}{f' [{marks}]' if marks else ''}"


def advice(
    facts: DataFacts, ranked: Sequence[Judged], evidence: Evidence, *, limits: Limits, device: str,
    label: Sequence[str] = (),
) -> Advice:  # fmt: skip
    """The sentences and commands for candidates in their order; `label` names the columns of the target."""
    rows, speeds, _, kind = evidence
    best = ranked[0]
    sentences = [
        *_model(facts, best, ranked),
        *_expected(facts, best, evidence.rows),
        *_time(facts, best, evidence, named=device in machines()),
        *_ways(facts, best, limits, evidence, label),
    ]
    sentences += [*_answer(best, limits, evidence), *_doctor(facts)]
    commands = _commands(facts, best, rows, kind, label)
    if not best.fits:
        closest = min(ranked, key=lambda one: excess(one, limits))
        reasons = tuple(f"{one.candidate.name}: {', '.join(one.too_much)}" for one in ranked)
        text = f"Nothing that was measured keeps the limits ({'; '.join(reasons)})."
        nearest = (
            f" {closest.candidate.name} is closest; raise a limit, or choose a smaller model of `vitrail models` or "
            "smaller images (--image-size)."
            if isfinite(excess(closest, limits))
            else " On the device itself, `vitrail advise` without a named machine measures it."
        )
        known = tuple(speeds[one.candidate.network] for one in ranked if one.candidate.network in speeds)
        sentences, commands = [Sentence(text + nearest, known, outside=True), *_doctor(facts)], []
    return Advice(facts=facts, device=device, limits=limits, ranked=ranked, sentences=sentences, commands=commands)


def _near(best: Judged) -> tuple[Row, ...]:
    return best.candidate.rows[:NEAR]


def _model(facts: DataFacts, best: Judged, ranked: Sequence[Judged]) -> Iterator[Sentence]:
    """Which model, and how close the case is to what was measured."""
    near = _near(best)
    about = best.candidate.about
    size = "" if best.candidate.image_size is None else f", at {' x '.join(map(str, best.candidate.image_size))} pixels"
    text = f"Model, weights, recipe, image size: {about[:1].lower()}{about[1:]} ({best.candidate.name}){size}"
    if not near:
        yield Sentence(f"{text}. No set of task {facts.task!r} is among those that were measured.", outside=True)
        return
    better = [one for one in ranked if one.merit > best.merit]
    sets = len({row.set for row in best.candidate.rows})
    if len(ranked) == 1:
        yield Sentence(f"{text}, the only one that was measured for task {facts.task!r}.", near)
        yield from _beyond(facts, best)
        return
    among = "those that keep the limits" if better else "all"
    yield Sentence(
        f"{text}; over all measured sets, near ones counting most, it is {100 * abs(best.merit):.1f} points below the "
        f"best in validation, the least of {among}. It was measured on {sets} set{'s' if sets != 1 else ''}; on others "
        "it counts as 10 points below.",
        near,
    )
    for one in better[:1]:
        yield Sentence(
            f"{one.candidate.name} would be better by {100 * (one.merit - best.merit):.1f} points, but is beyond the "
            f"limits: {', '.join(one.too_much)}.",
            one.candidate.rows[:NEAR],
        )
    yield from _beyond(facts, best)


def _beyond(facts: DataFacts, best: Judged) -> Iterator[Sentence]:
    """How the case differs from all sets that were measured."""
    if differences := _differences(facts, best.candidate):
        yield Sentence(f"This case: {'; '.join(differences)}.", best.candidate.rows[:1], outside=True)


def _differences(facts: DataFacts, candidate: Candidate) -> list[str]:
    """Why the case lies outside of what was measured of a candidate."""
    nearest = candidate.rows[0]
    outside = [*_outside(facts, candidate.rows), *_longer(candidate, nearest)]
    if facts.distance(nearest.values) > _FAR:
        outside.append(f"the nearest set, {nearest.set}, is unlike these data")
    return outside


def _outside(facts: DataFacts, rows: Sequence[Row]) -> Iterator[str]:
    """In which respect data lie beyond all sets on which something was measured."""
    for name, value in (("images", facts.images), ("classes", facts.classes), ("pixels", facts.pixels)):
        known = [row.values[name] for row in rows if row.values.get(name) is not None]
        if known and not min(known) <= value <= max(known):
            ends = dict.fromkeys((f"{min(known):,}", f"{max(known):,}"))
            yield f"{value:,} {name}, measured with {' to '.join(ends)}"


def _longer(candidate: Candidate, row: Row) -> Iterator[str]:
    """How the training itself differs from what was measured."""
    if candidate.work(row) != 1.0 and candidate.image_size is not None:
        here, there = (" x ".join(map(str, one)) for one in (candidate.image_size, row.values["image_size"]))
        yield f"{candidate.epochs} epochs at {here} pixels, measured with {row.values['epochs']} at {there}"


def _expected(facts: DataFacts, best: Judged, rows: Sequence[Row]) -> Iterator[Sentence]:
    """The range of the result on near sets."""
    near = _near(best)
    if not near:
        yield Sentence("Expected accuracy: not known.", outside=True)
        return
    tests = [row.values["test"] for row in near]
    metric, names = near[0].values["metric"], ", ".join(dict.fromkeys(row.set for row in near))
    span = show(min(tests), "share") if len(tests) == 1 else show_interval((min(tests), max(tests)), "share")
    alike = f"sets most alike in size, number and colour of images ({names})" if len(near) > 1 else f"one set, {names}"
    text = f"Expected: {near[0].values.get('on', 'test')} {metric} {span}, its result on the {alike}."
    check = next((row for row in rows if row.kind == "check" and near[0].values["task"] == row.values["task"]), None)
    if check is not None and len(near) > 1:
        held = f"on {check.values['inside']} of {check.values['sets']} sets that were left out"
        text, near = f"{text} Such a range held {held}: how hard your classes are is not known.", (*near, check)
    elif len(near) == 1:
        text = f"{text} One set says little about yours."
    yield Sentence(text, near, outside=bool(_differences(facts, best.candidate)))


def _time(facts: DataFacts, best: Judged, evidence: Evidence, *, named: bool) -> Iterator[Sentence]:
    """How long training takes."""
    rows, speeds, _, kind = evidence
    if best.seconds is None:
        yield Sentence("Training time: not measured on such a device.", outside=True)
        return
    timed, speed = timed_rows(best.candidate, kind), speeds.get(best.candidate.network)
    if timed:
        core = " of a core" if kind == "cpu" else ""
        text = (
            f"Training: about {duration(best.seconds)}, from {1000 * per_image(timed):.3g} ms{core} for each image "
            f"there and {facts.images:,} images here{_more(best.candidate, timed)}"
        )
        slower = slowness(best.candidate.network, rows, speed)
        if slower is None or speed is None:
            yield Sentence(f"{text}, if this device is as fast as that one.", tuple(timed), outside=not named)
            return
        there = tuple(row for row in rows if row.kind == "speed" and row.of == best.candidate.network)
        fast = "as fast as that one" if f"{slower:.2g}" == "1" else f"that takes {slower:.2g} times as long"
        yield Sentence(f"{text}, on a device {fast}.", (*timed, *there, speed))
        return
    text = f"Training: about {duration(best.seconds)}, if a step of an image takes {FORWARDS:g} forward passes"
    yield Sentence(f"{text}; no training was timed on such a device.", () if speed is None else (speed,), outside=True)


def _more(candidate: Candidate, timed: Sequence[Row]) -> str:
    """How many times as much an image is computed as in the measured training, where that is known."""
    times = candidate.work(timed[0])
    return "" if times == 1.0 else f", each taking {times:.2g} times as long by epochs and pixels"


def _data_words(facts: DataFacts, label: Sequence[str]) -> str:
    """The data as words of a command."""
    return shlex.quote(facts.source) + (f" --label {shlex.quote(','.join(label))}" if label else "")


def _sizes(facts: DataFacts, best: Judged, data: str) -> Iterator[Sentence]:
    """What training does beside the advised setting where it chooses by itself."""
    if best.candidate.sizes:
        sizes = " and ".join(f"{one} x {one}" for one in best.candidate.sizes)
        yield Sentence(
            f"With nothing named, vitrail train {data} fits this head at {sizes} pixels, too, and keeps the size that "
            "folds of the training images choose. That may be more accurate, and an answer takes longer at a larger "
            "size; the rows are of the usual size.",
            _near(best),
            outside=True,
        )


def _ways(
    facts: DataFacts, best: Judged, limits: Limits, evidence: Evidence, label: Sequence[str]
) -> Iterator[Sentence]:
    """Other commands: the linear head alone, and a search in a budget of time."""
    data = _data_words(facts, label)
    yield from _sizes(facts, best, data)
    if best.candidate.head_on is not None:
        words = f"vitrail probe {best.candidate.head_on} {data} --fit --out {_OUT}"
        text = f"The same head without a recipe, which is quick to fit again as images are added: {words}."
        yield Sentence(text, _near(best))
    minutes = _MINUTES if limits.minutes is None else limits.minutes
    words = f"vitrail train {data} --minutes {minutes:g}"
    what = (
        f"To search for longer: {words} tries the default, linear heads and fine-tuning in that time, and keeps the "
        "default unless another is better by more than a standard error"
    )
    known = tuple(row for row in evidence.rows if row.kind == "tuning" and row.values["task"] == facts.task)
    if not known:
        yield Sentence(f"{what}; what that gains was not measured for task {facts.task!r}.", outside=True)
        return
    compared = [row for row in known if row.values["others"]]
    kept = sum(row.values["kept"] == "the default" for row in compared)
    longest = max(row.values["minutes"] for row in known)
    yield Sentence(
        f"{what}. In searches of up to {longest} minutes the default was kept on {kept} of {len(compared)} sets on "
        f"which there was time for others.",
        known,
        outside=minutes > longest or evidence.kind not in {row.values["device"] for row in known},
    )


def _answer(best: Judged, limits: Limits, evidence: Evidence) -> Iterator[Sentence]:
    """The time of an answer, memory, and the export."""
    rows, speeds, memories, kind = evidence
    speed = speeds.get(best.candidate.network)
    if speed is None:
        yield Sentence(f"Time of an answer: {best.candidate.network} was not measured on this device.", outside=True)
    else:
        asked = "" if limits.latency is None else f" (limit {limits.latency:g} ms)"
        yield Sentence(
            f"An answer takes {in_ms(speed.values['ms'])} in PyTorch as trained, one image at a time{asked}; decoding "
            "and resizing the image come on top.",
            (speed,),
        )
        if (load := float(speed.values.get("load", 0.0))) > BUSY:
            yield Sentence(
                f"This machine was busy while it was measured ({load:.1f} other processes for each core), so the "
                "fastest pass counts; idle, it may be faster still, and the advice another.",
                (speed,),
            )
    engine = best.engine or best_engine(best.candidate.network, rows, kind)
    if engine is not None and float(engine.values["times"]) >= _WORTH:
        after = "" if speed is None else f", so about {in_ms(speed.values['ms'] / engine.values['times'])}"
        needed = " It is needed to keep the limit." if best.engine is not None else ""
        note = f" ({engine.values['note']})" if "note" in engine.values else ""
        yield Sentence(
            f"Export: {engine.values['engine']} was {engine.values['times']:.2f} times as fast as eager{after}, "
            f"with the same answer on {show(engine.values['same'], 'share')} of the images{note}; measure yours with "
            f"vitrail bench.{needed}",
            (engine,),
        )
    elif engine is not None:
        yield Sentence(
            "Export: no engine that was measured is faster for this network; int8 is not worth it.", (engine,)
        )
    else:
        where = "this network" if kind == "cpu" else "a GPU"
        yield Sentence(f"Export: engines and int8 were not measured for {where}; try vitrail bench.", outside=True)
    if best.memory is not None:
        held = memories[best.candidate.network]
        yield Sentence(f"Memory: {best.memory:.0f} MiB for a process that loads the network and answers.", (held,))


def _doctor(facts: DataFacts) -> Iterator[Sentence]:
    """What the doctor says of the data."""
    for line in facts.doctor:
        yield Sentence(f"The doctor: {line}")


def _commands(facts: DataFacts, best: Judged, rows: Sequence[Row], kind: str, label: Sequence[str]) -> list[str]:
    """What to type."""
    data, out = _data_words(facts, label), _OUT
    commands = [words.format(data=data, out=out) for words in best.candidate.train]
    commands.append(f"vitrail eval {out}")
    engine = best.engine or best_engine(best.candidate.network, rows, kind)
    if engine is not None and float(engine.values["times"]) >= _WORTH:
        int8 = f" --int8 {shlex.quote(facts.source)}" if engine.values["int8"] else ""
        commands.append(f"vitrail export {out} --to {engine.values['target']}{int8} --out dist/")
        commands.append(f"vitrail bench dist/ {out}")
    return commands
