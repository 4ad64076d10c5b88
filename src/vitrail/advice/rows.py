"""Measured rows: what was measured on which set, on which machine, and the command that gives it.

`measured.json` has those of recipes, engines and speeds; the table of the first try comes from its caller.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from statistics import median
from typing import Any, Protocol

from vitrail.report import show


class Cell(Protocol):
    """A set of the first try; its results by setting have `validation`, `test` and `seconds`."""

    @property
    def name(self) -> str:
        """The set."""

    @property
    def images(self) -> int:
        """Of training."""

    @property
    def classes(self) -> int:
        """How many."""

    @property
    def pixels(self) -> int:
        """The longer side."""

    @property
    def grey(self) -> bool:
        """Whether all images are."""

    @property
    def results(self) -> Mapping[str, Any]:
        """By setting."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured result. `of` is a setting, a recipe or a network; `values` depend on the kind.

    Kinds: result (of a training on a set), speed (milliseconds of a forward pass of one image), engine (how many times
    as fast as eager PyTorch), training (its seconds alone), claim (what the lab found), check (how often advice held),
    tuning (a search in a budget of time, and what it kept), here and memory (measured now).
    """

    kind: str
    of: str
    values: Mapping[str, Any]
    hardware: str
    versions: str
    command: str

    @property
    def set(self) -> str:
        """The set of a result."""
        return str(self.values.get("set", ""))

    @property
    def machine(self) -> str:
        """The hardware with the versions of the software."""
        return (
            self.hardware if self.versions.partition(" ")[0] in self.hardware else f"{self.hardware}; {self.versions}"
        )

    def text(self) -> str:
        """What was measured, in words."""
        values = self.values
        if self.kind == "result":
            seeds = values.get("tests", [values["test"]])
            ends = f" ({show(min(seeds), 'share')} to {show(max(seeds), 'share')}, {len(seeds)} seeds)"
            took = "" if values.get("seconds") is None else f", {values['seconds']:.0f} s"
            test = show(values["test"], "share")
            how = "" if "epochs" not in values else f", {values['epochs']} epochs at {_by(values['image_size'])}"
            kept = "" if "validation" in values else ", validation not kept"
            return f"{values.get('on', 'test')} {values['metric']} {test}{ends * (len(seeds) > 1)}{took}{how}{kept}"
        if self.kind == "engine":
            ends = f"{values['low']:.2f} to {values['high']:.2f}"
            return f"{values['engine']}: {values['times']:.2f} times eager ({ends}), batch 1"
        if self.kind == "check":
            return f"inside on {values['inside']} of {values['sets']} {values['which']}"
        if self.kind == "tuning":
            best, others = values["best_other"], values["others"]
            named = f"best of {others} others" if others != 1 else "one other"
            found = f"{named} {show(best, 'share')}" if others else "no time for others"
            default = f"{values['metric']} of the default {show(values['default'], 'share')} (validation)"
            return f"{values['minutes']} minutes: {default}, {found}; kept {values['kept']}"
        if self.kind == "training":
            note = f", {values['note']}" if "note" in values else ""
            return f"{values['seconds']:.1f} s for {values['images']} images of {values['pixels']} pixels{note}"
        if self.kind == "claim":
            return f"{values['outcome']}, {values['seeds']} seeds"
        if self.kind == "memory":
            return f"{values['mib']} MiB of a process that answers one image"
        return f"{values['ms']:.2f} ms an image ({values['low']:.2f} to {values['high']:.2f}), batch 1"


def _by(size: Sequence[int]) -> str:
    return " x ".join(map(str, size))


@cache
def packaged_rows() -> tuple[Row, ...]:
    """All rows of measured.json."""
    text = resources.files(__package__ or "").joinpath("measured.json").read_text(encoding="utf-8")
    return tuple(_read(entry) for entry in json.loads(text)["rows"])


@cache
def machines() -> Mapping[str, str]:
    """The machines that can be named instead of measured, with their kind of device."""
    text = resources.files(__package__ or "").joinpath("measured.json").read_text(encoding="utf-8")
    found: dict[str, str] = json.loads(text)["machines"]
    return found


def _read(entry: Mapping[str, Any]) -> Row:
    about = {name: str(entry[name]) for name in ("kind", "of", "hardware", "versions", "command")}
    values = {name: value for name, value in entry.items() if name not in about}
    if "tests" in values:
        values["test"] = median(values["tests"])
        values["validation"] = median(values["validations"])
        known = [one for one in values.get("times", []) if one is not None]
        values["seconds"] = median(known) if known else None
    return Row(values=values, **about)


def rows_of_cells(cells: Sequence[Cell]) -> list[Row]:
    """The table of the first try as rows; its seconds are of two cores."""
    return [
        Row(
            kind="result",
            of=name,
            values={
                "set": cell.name, "task": "classify", "images": cell.images, "classes": cell.classes,
                "pixels": cell.pixels, "grey": cell.grey, "metric": "accuracy", "validation": one.validation,
                "test": one.test, "seconds": one.seconds, "device": "cpu", "cores": 2,
            },
            hardware="AMD EPYC, one core; seconds for two",
            versions="torch 2.13.0",
            command=f"python benchmarks/first_try.py run SETS OUT --settings {name} --sets {cell.name}",
        )
        for cell in cells
        for name, one in cell.results.items()
    ]  # fmt: skip
