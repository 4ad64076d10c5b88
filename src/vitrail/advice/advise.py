"""Advice in sentences, each with the measured rows that it rests on, and the commands to type."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from vitrail.advice.about_model import expected, model
from vitrail.advice.choose import Evidence, Judged, Limits, best_engine, excess
from vitrail.advice.costs import WORTH, answer, launches, training
from vitrail.advice.facts import DataFacts
from vitrail.advice.findings import findings
from vitrail.advice.rows import Row, machines
from vitrail.advice.sentence import Sentence
from vitrail.advice.tables import candidates_table, data_section, engine_of, rows_table
from vitrail.advice.ways import OUT, data_words, ways
from vitrail.report import Code, Report, Section, Text
from vitrail.strict_json import to_json


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
                    "name": one.candidate.name, "below": None if one.points is None else one.points.share,
                    "ms": one.latency, "by": engine_of(one), "mib": one.memory, "training_seconds": one.seconds,
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
        *model(facts, best, ranked, rows),
        *expected(facts, best, rows),
        *training(facts, best, evidence, named=device in machines()),
        *ways(facts, best, limits, evidence, label),
        *answer(best, limits, evidence),
        *launches(facts, evidence),
        *findings(facts, rows),
        *_doctor(facts),
    ]
    commands = _commands(facts, best, rows, kind, label)
    if not best.fits:
        closest = min(ranked, key=lambda one: excess(one, limits))
        text = "Nothing that was measured is known to keep the limits; the table of candidates says why."
        smaller = " or smaller images (--image-size)" if kind == "cpu" else ""
        nearest = (
            f" {closest.candidate.name} is closest ({', '.join(closest.too_much)}); raise a limit, or choose a smaller "
            f"model of `vitrail models`{smaller}."
            if isfinite(excess(closest, limits))
            else " On the device itself, `vitrail advise` without a named machine measures it."
        )
        known = tuple(speeds[one.candidate.network] for one in ranked if one.candidate.network in speeds)
        said = Sentence(text + nearest, known, outside=True)
        sentences, commands = [said, *launches(facts, evidence), *_doctor(facts)], []
    return Advice(facts=facts, device=device, limits=limits, ranked=ranked, sentences=sentences, commands=commands)


def _doctor(facts: DataFacts) -> Iterator[Sentence]:
    """What the doctor says of the data."""
    for line in facts.doctor:
        yield Sentence(f"The doctor: {line}")


def _commands(facts: DataFacts, best: Judged, rows: Sequence[Row], kind: str, label: Sequence[str]) -> list[str]:
    """What to type."""
    data, out = data_words(facts, label), OUT
    commands = [words.format(data=data, out=out) for words in best.candidate.train]
    commands.append(f"vitrail eval {out}")
    engine = best.engine or best_engine(best.candidate.network, rows, kind)
    if engine is not None and float(engine.values["times"]) >= WORTH:
        int8 = f" --int8 {shlex.quote(facts.source)}" if engine.values["int8"] else ""
        commands.append(f"vitrail export {out} --to {engine.values['target']}{int8} --out dist/")
        commands.append(f"vitrail bench dist/ {out}")
    return commands
