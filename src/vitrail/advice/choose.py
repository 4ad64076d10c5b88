"""The choice between what was measured: the least regret on sets like the data, within limits on time and memory."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median
from typing import Any, NamedTuple, Protocol

from vitrail.advice.facts import DataFacts
from vitrail.advice.regret import FAR, Points, below, merit
from vitrail.advice.rows import Row
from vitrail.config import Config, Positive
from vitrail.data.audit.doctor import FORWARDS
from vitrail.packaged import NAME, NAMES, PHOTOS, packaged_size
from vitrail.report.values import duration
from vitrail.strict_json import to_json

NEAR = 7  # measured sets that an expected result is taken from: with 4, it was inside on 9 of 15, with 7 on 12
_FEWER = 0.5  # of the images of a training from random weights: with fewer, its result says nothing here
DEFAULT = "default"
_OPTIONS = {"freeze_until": "--freeze-until", "epochs": "--epochs", "lora": "--lora"}  # of changes to a recipe
_STARTED = {"cifar10-conv": "cifar10-conv-mae", "cifar10-small": "cifar10-small-mae"}  # recipes with one before them
_FINE_TUNED = ("finetune",)  # recipes that start from packaged weights
_NETWORKS = {"fashion-mnist": NAME, "cifar10-conv": NAME, "finetune": NAME}  # the same architecture


class Setting(Protocol):
    """A setting of the first try, or of SMALLER."""

    @property
    def start(self) -> str:
        """The weights to start from."""

    @property
    def changes(self) -> Mapping[str, Any]:
        """To the recipe of fine-tuning."""

    @property
    def about(self) -> str:
        """What it does."""


class First(Protocol):
    """The setting that training chooses by itself for some data."""

    @property
    def name(self) -> str:
        """Of the setting."""

    @property
    def sizes(self) -> Sequence[int]:
        """Other image sizes that it tries then."""


class SmallerHead(NamedTuple):
    """The head of a setting of the first try on smaller images, for answers in less time."""

    start: str
    changes: Mapping[str, Any]
    about: str


SMALLER = {
    f"probe-photos-{size}": SmallerHead(
        PHOTOS, {"probe": "linear", "image_size": size},
        f"a linear head on the features of a packaged network, on images of {size} x {size} pixels",
    )
    for size in (96, 64)
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Limits(Config):
    """What an answer may take in milliseconds and MiB, and training in minutes; None for no limit."""

    latency: Positive | None = None
    memory: Positive | None = None
    minutes: Positive | None = None


class Evidence(NamedTuple):
    """All rows, the speed and memory of networks by name, and the kind of the device, such as "cpu"."""

    rows: Sequence[Row]
    speeds: Mapping[str, Row]
    memories: Mapping[str, Row]
    kind: str


@dataclass(frozen=True)
class Candidate:
    """Something that can be trained: its name, what it is, the network that answers, the commands, and its rows."""

    name: str
    about: str
    network: str
    train: tuple[str, ...]  # commands, with {data} and {out}
    rows: tuple[Row, ...]  # results, the sets most like the data first
    epochs: int | None = None
    head_on: str | None = None  # the weights whose features a linear head reads, where that is all that is trained
    image_size: tuple[int, int] | None = None  # height and width, where they are known before training
    sizes: tuple[int, ...] = ()  # other image sizes that training tries with nothing named
    scratch: bool = False  # whether it learns from random weights
    like: str = ""  # the setting that it begins with, whose validation counts for it
    timed: tuple[Row, ...] = ()  # trainings that were timed alone

    @property
    def measured_as(self) -> str:
        """The name of the rows whose validation counts."""
        return self.like or self.name

    def near(self, facts: DataFacts) -> bool:
        """Whether it was measured on a set like the data, and not on many times as many images if from scratch."""
        return any(
            facts.distance(row.values) <= FAR
            and not (self.scratch and facts.images < _FEWER * row.values["images"])
            for row in self.rows
        )  # fmt: skip

    def work(self, row: Row) -> float:
        """How many times the pixels of a row's training each image is shown with; 1 where that is the same."""
        if self.image_size is None or self.epochs is None or "epochs" not in row.values:
            return 1.0
        here, there = (one[0] * one[1] for one in (self.image_size, row.values["image_size"]))
        return float(self.epochs * here / (row.values["epochs"] * there))


@dataclass(frozen=True)
class Judged:
    """A candidate with what it would take here: milliseconds an answer, MiB, seconds of training; None if not known."""

    candidate: Candidate
    merit: float  # for the order alone
    latency: float | None
    memory: float | None
    seconds: float | None
    engine: Row | None = None  # what makes its latency fit
    too_much: tuple[str, ...] = ()  # limits that it does not keep
    points: Points | None = None  # below the best in validation, where near sets tell it
    doubt: int = 0  # 0: measured on sets like the data, 1: not, 2: not, and from random weights
    timed: bool = True  # whether its training was on such a device; else its seconds come from forward passes

    @property
    def fits(self) -> bool:
        """Whether it keeps all limits."""
        return not self.too_much


def candidates(
    facts: DataFacts, rows: Sequence[Row], settings: Mapping[str, Setting], recipes: Mapping[str, Mapping[str, Any]],
    first: First | None = None,
) -> list[Candidate]:  # fmt: skip
    """Everything that was measured for the task of the data; `first` is what training does with nothing named."""
    every = {**settings, **SMALLER}
    results = [row for row in rows if row.kind == "result" and row.values["task"] == facts.task]
    found = []
    for name in dict.fromkeys(row.of for row in results):
        own = tuple(sorted((row for row in results if row.of == name), key=lambda row: facts.distance(row.values)))
        timed = tuple(row for row in rows if row.kind == "training" and row.of == name)
        if name in every:
            found.append(_of_setting(name, every[name], own, timed))
        elif name in recipes:
            found.append(_of_recipe(name, recipes[name], own, timed))
        elif name == DEFAULT and first is not None and first.name == own[0].values["like"]:
            found.append(_of_default(settings[first.name], first, own, timed))
    whole = [one for one in found if one.name == DEFAULT and not one.sizes]  # the same as the setting that it names
    return [one for one in found if not whole or one.name != whole[0].like]


def _of_setting(name: str, setting: Setting, own: tuple[Row, ...], timed: tuple[Row, ...]) -> Candidate:
    network = PHOTOS if setting.start == PHOTOS else NAME
    size = setting.changes.get("image_size")
    words = f"vitrail train {{data}} --from {setting.start}{''.join(_words(setting.changes))} --out {{out}}"
    head_on = setting.start if dict(setting.changes) == {"probe": "linear"} else None
    return Candidate(
        name, setting.about, network if size is None else f"{network}@{size}", (words,), own, head_on=head_on,
        image_size=size_of(network) if size is None else (size, size), timed=timed,
    )  # fmt: skip


def _of_recipe(name: str, recipe: Mapping[str, Any], own: tuple[Row, ...], timed: tuple[Row, ...]) -> Candidate:
    return Candidate(
        name, f"the recipe {name} trains {recipe['model']} from {_start(name)}", _NETWORKS.get(name, name),
        tuple(_recipe_commands(name)), own, recipe.get("epochs"), image_size=_size_of_recipe(name, recipe),
        scratch=name not in _FINE_TUNED, timed=timed,
    )  # fmt: skip


def _of_default(setting: Setting, first: First, own: tuple[Row, ...], timed: tuple[Row, ...]) -> Candidate:
    """What training does with nothing named; an answer may take as long as the largest of its sizes does."""
    sizes = tuple(first.sizes)
    about = f"what vitrail train does with nothing named: {setting.about}"
    if sizes:
        about = f"{about}, and folds of the training images choose the size of the images"
    network = f"{setting.start}@{max(sizes)}" if sizes else setting.start
    return Candidate(
        DEFAULT, about, network, ("vitrail train {data} --out {out}",), own,
        head_on=setting.start if dict(setting.changes) == {"probe": "linear"} else None,
        image_size=size_of(setting.start), sizes=sizes, like=first.name, timed=timed,
    )  # fmt: skip


def size_of(network: str) -> tuple[int, int] | None:
    """The height and width that packaged weights take; None for another network."""
    return packaged_size(network) if network in NAMES else None


def _size_of_recipe(name: str, recipe: Mapping[str, Any]) -> tuple[int, int] | None:
    """The height and width of a recipe's images; None where they are those of the data."""
    found = recipe.get("image_size", recipe.get("options", {}).get("image_size"))
    if found is None:
        return size_of(NAME) if name == "finetune" else None
    height, width = (found, found) if isinstance(found, int) else found
    return height, width


def _start(name: str) -> str:
    if name == "finetune":
        return "the packaged vit32_conv"
    return "weights that it pre-trains on the same images" if name in _STARTED else "random weights"


def _recipe_commands(name: str) -> Iterable[str]:
    start = " --from packaged" if name == "finetune" else ""
    if (before := _STARTED.get(name)) is not None:
        yield f"vitrail train {{data}} --recipe {before} --out {{out}}-pretrained"
        start = " --from {out}-pretrained"
    yield f"vitrail train {{data}} --recipe {name}{start} --out {{out}}"


def _words(changes: Mapping[str, Any]) -> Iterable[str]:
    """Changes to a recipe as words of a command."""
    for key, value in changes.items():
        text = value if isinstance(value, str) else to_json(value)
        yield f" {_OPTIONS[key]} {text}" if key in _OPTIONS else f" --set {shlex.quote(f'{key}={text}')}"


def judge(candidate: Candidate, facts: DataFacts, limits: Limits, evidence: Evidence) -> Judged:
    """What a candidate would take on the device, and which limits it does not keep."""
    rows, speeds, memories, device = evidence
    speed = speeds.get(candidate.network)
    latency = None if speed is None else float(speed.values["ms"])
    engine, too_much = None, []
    if limits.latency is not None and latency is None:
        too_much.append("the time of an answer was not measured on such a device")
    elif limits.latency is not None and latency is not None and latency > limits.latency:
        engine = best_engine(candidate.network, rows, device)
        latency = latency if engine is None else latency / float(engine.values["low"])  # the lower end
        if latency > limits.latency:
            how = "" if engine is None else f" with {engine.values['engine']}"
            too_much.append(f"{in_ms(latency)} an image{how}, limit {limits.latency:g} ms")
    held = memories.get(candidate.network)
    mib = None if held is None else float(held.values["mib"])
    if limits.memory is not None and mib is not None and mib > limits.memory:
        too_much.append(f"{mib:.0f} MiB, limit {limits.memory:.4g} MiB")
    seconds, timed = training_seconds(candidate, facts, rows, speed, device), timed_rows(candidate, device)
    if limits.minutes is not None and seconds is not None and seconds > 60 * limits.minutes:
        most = f"limit {limits.minutes:g} minute{'s' * (limits.minutes != 1)}"
        too_much.append(f"about {duration(seconds)} of training{_certainty(timed)}, {most}")
    own, points, doubt = place(candidate, facts, rows)
    return Judged(candidate, own, latency, mib, seconds, engine, tuple(too_much), points, doubt, bool(timed))


def _certainty(timed: Sequence[Row]) -> str:
    """Where a time of training comes from, if not from results on sets like the data."""
    if not timed:
        return " (not timed on such a device)"
    alone = timed[0].kind == "training"
    return f" (in proportion to one of {timed[0].values['images']:,} images with its start)" if alone else ""


def place(candidate: Candidate, facts: DataFacts, rows: Sequence[Row]) -> tuple[float, Points | None, int]:
    """The merit of a candidate, its points where near sets tell them, and how far it is from what was measured."""
    near, name = candidate.near(facts), candidate.measured_as
    points = below(name, facts, rows) if near else None
    return merit(name, facts, rows), points, 0 if near else 1 + candidate.scratch


def excess(judged: Judged, limits: Limits) -> float:
    """How many times as much as the limits allow something takes; infinite where it is not known."""
    minutes = None if judged.seconds is None else judged.seconds / 60
    taken = ((judged.latency, limits.latency), (judged.memory, limits.memory), (minutes, limits.minutes))
    return max((inf if value is None else value / most for value, most in taken if most is not None), default=0.0)


def in_ms(milliseconds: float) -> str:
    """Such as "7.39 ms" or "2,651 ms"."""
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds:,.0f} ms"


def best_engine(network: str, rows: Sequence[Row], device: str) -> Row | None:
    """The fastest engine that was measured for a network on a CPU, and gives the same answers."""
    known = [row for row in rows if row.kind == "engine" and row.of == network and row.values["same"] >= 0.99]
    return max(known, key=lambda row: float(row.values["times"]), default=None) if device == "cpu" else None


def training_seconds(
    candidate: Candidate, facts: DataFacts, rows: Sequence[Row], speed: Row | None, device: str
) -> float | None:
    """From measured trainings, in proportion to the images and the speed of the device; else, on a CPU, from passes.

    On a GPU passes of one image wait for launches, and say nothing of steps with many.
    """
    if timed := timed_rows(candidate, device):
        slower = slowness(candidate.network, rows, speed) or 1.0
        return max(5.0, per_image(timed, candidate) * facts.images * slower)
    if speed is None or candidate.epochs is None or device != "cpu":
        return None
    return FORWARDS * candidate.epochs * facts.images * float(speed.values["ms"]) / 1000


def timed_rows(candidate: Candidate, device: str) -> list[Row]:
    """The most similar sets on which training was timed on such a device, else trainings that were timed alone."""
    near = [row for row in candidate.rows if row.values.get("seconds") and row.values["device"] == device][:NEAR]
    return near or [row for row in candidate.timed if row.values["device"] == device]


def per_image(timed: Sequence[Row], candidate: Candidate | None = None) -> float:
    """Seconds of training for an image, on one core or a whole GPU: the median of some rows.

    With a candidate, in proportion to its epochs and the size of its images.
    """
    return median(
        row.values["seconds"] * row.values.get("cores", 1) / row.values["images"]
        * (1.0 if candidate is None else candidate.work(row))
        for row in timed
    )  # fmt: skip


def slowness(network: str, rows: Sequence[Row], speed: Row | None) -> float | None:
    """How many times as long as on one core of the table a network takes; None where that is not known."""
    there = speed_there(network, rows, speed)
    if there is None or speed is None:
        return None
    return float(speed.values["ms"]) / float(there.values["ms"])


def ranked(found: Sequence[Judged]) -> list[Judged]:
    """Those that keep the limits first, then in their order.

    The default stands before all that start from trained weights: only trainings from random weights on as many images
    of such a kind can be before it.
    """
    most = max((one.merit for one in found if not one.candidate.scratch), default=0.0)
    settled = [replace(one, merit=most) if one.candidate.name == DEFAULT else one for one in found]
    return sorted(settled, key=lambda one: (not one.fits, *order(one)))


def speed_there(network: str, rows: Sequence[Row], speed: Row | None) -> Row | None:
    """The measured speed of a network on a machine of the table with such a device."""
    device = None if speed is None else speed.values.get("device")
    known = (row for row in rows if row.kind == "speed" and row.of == network)
    return next((row for row in known if row.values.get("device") == device), None)


def order(one: Judged) -> tuple[int, float, bool]:
    """The place without limits: those measured on near sets first, by merit, and the default before its equals."""
    return one.doubt, -one.merit, one.candidate.name != DEFAULT
