"""What the advised setting takes here: training, an answer, memory; and what makes an answer faster."""

from collections.abc import Iterator, Sequence

from vitrail.advice.choose import (
    Candidate,
    Evidence,
    Judged,
    Limits,
    best_engine,
    in_ms,
    per_image,
    slowness,
    speed_there,
    timed_rows,
)
from vitrail.advice.facts import DataFacts
from vitrail.advice.networks import BUSY
from vitrail.advice.rows import Row
from vitrail.advice.sentence import Sentence
from vitrail.data.audit.doctor import FORWARDS
from vitrail.packaged import PHOTOS
from vitrail.report import show
from vitrail.report.values import duration

WORTH = 1.1  # times eager from which on an engine is worth its trouble


def training(facts: DataFacts, best: Judged, evidence: Evidence, *, named: bool) -> Iterator[Sentence]:
    """How long training takes."""
    rows, speeds, _, kind = evidence
    if best.seconds is None:
        yield Sentence("Training time: not measured on such a device; a limit on it may not be kept.", outside=True)
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
            yield Sentence(
                f"{text}, if this device is as fast as that one.{_whole(timed)}", tuple(timed), outside=not named
            )
            return
        there = speed_there(best.candidate.network, rows, speed)
        fast = "as fast as that one" if f"{slower:.2g}" == "1" else f"that takes {slower:.2g} times as long"
        known = (*timed, *(() if there is None else (there,)), speed)
        yield Sentence(f"{text}, on a device {fast}.{_whole(timed)}", known)
        return
    text = f"Training: about {duration(best.seconds)}, if a step of an image takes {FORWARDS:g} forward passes"
    text = f"{text}; no training of it was timed on such a device."
    yield Sentence(text, () if speed is None else (speed,), outside=True)


def _whole(timed: Sequence[Row]) -> str:
    """What a time in proportion to the images leaves out, where a training was timed alone, as a whole."""
    if any(row.kind != "training" for row in timed):
        return ""
    return (
        f" That is in proportion to one training of {timed[0].values['images']:,} images with its start and report, so "
        "for fewer images it is too little, and for more too much."
    )


def _more(candidate: Candidate, timed: Sequence[Row]) -> str:
    """How many times as much an image is computed as in the measured training, where that is known."""
    times = candidate.work(timed[0])
    return "" if times == 1.0 else f", each taking {times:.2g} times as long by epochs and pixels"


def answer(best: Judged, limits: Limits, evidence: Evidence) -> Iterator[Sentence]:
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
    if engine is not None and float(engine.values["times"]) >= WORTH:
        after = "" if speed is None else f", so about {in_ms(speed.values['ms'] / engine.values['times'])}"
        ends = f" ({engine.values['low']:.2f} to {engine.values['high']:.2f}; {engine.hardware})"
        needed = ""
        if best.engine is not None and best.latency is not None:
            low = f"{in_ms(best.latency)}, with the lower end of what was measured ({engine.values['low']:.2f} times)"
            needed = f" It is needed to keep the limit, for which the slower figure counts: {low}."
        note = f" ({engine.values['note']})" if "note" in engine.values else ""
        yield Sentence(
            f"Export: {engine.values['engine']} was {engine.values['times']:.2f} times as fast as eager{ends}{after}, "
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


def launches(facts: DataFacts, evidence: Evidence) -> Iterator[Sentence]:
    """Why an answer for one image takes as long as it does on a GPU, and what a CPU takes."""
    if evidence.kind != "cuda" or facts.task != "classify":
        return
    small, large = (_speed(evidence.rows, f"{PHOTOS}@{size}", "cuda") for size in (96, 256))
    if small is not None and large is not None:
        yield Sentence(
            "For one image on a GPU, the launches of the layers count and not their arithmetic, so that smaller images "
            f"are not faster: {PHOTOS} took {in_ms(small.values['ms'])} at 96 x 96 and {in_ms(large.values['ms'])} at "
            "256 x 256 pixels.",
            (small, large),
        )
    core, engine = _speed(evidence.rows, PHOTOS, "cpu"), best_engine(PHOTOS, evidence.rows, "cpu")
    if core is not None and engine is not None:
        yield Sentence(
            f"A CPU may be as fast for one image at a time: {PHOTOS} took {in_ms(core.values['ms'])} there "
            f"({core.hardware}), and {engine.values['engine']} was {engine.values['times']:.2f} times as fast "
            f"({engine.values['low']:.2f} to {engine.values['high']:.2f}), so about "
            f"{in_ms(core.values['ms'] / engine.values['times'])}; see --device {core.values['machine']}.",
            (core, engine),
        )


def _speed(rows: Sequence[Row], network: str, device: str) -> Row | None:
    """The time of an answer of a network on such a device of the table."""
    known = (row for row in rows if row.kind == "speed" and row.of == network)
    return next((row for row in known if row.values["device"] == device), None)
