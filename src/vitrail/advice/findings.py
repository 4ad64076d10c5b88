"""Claims about models that full runs of the lab tested, where they bear on the advice."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from vitrail.advice.facts import DataFacts
from vitrail.advice.rows import Row
from vitrail.advice.sentence import Sentence

BEARING = {  # experiment -> what it is about
    "data-size": "ViTs and CNNs by the number of images",
    "robustness": "changed and attacked images",
    "shape-bias": "shape and texture",
    "scaling": "larger models and more images",
}


class Published(Protocol):
    """The published record of a full run."""

    @property
    def hardware(self) -> str:
        """It was measured on."""

    @property
    def versions(self) -> Mapping[str, str]:
        """Of the software."""

    @property
    def command(self) -> str:
        """That made it."""

    @property
    def runs(self) -> Sequence[Any]:
        """One a seed."""


def finding(name: str, claim: str, outcome: str, text: str, record: Published) -> Row:
    """The row of a claim that a full run tested."""
    return Row(
        kind="claim", of=name,
        values={"set": f"lab/results/{name}.json", "claim": claim, "outcome": outcome, "text": text,
                "seeds": len(record.runs)},
        hardware=record.hardware, versions=f"torch {record.versions.get('torch', 'unknown')}", command=record.command,
    )  # fmt: skip


def findings(facts: DataFacts, rows: Sequence[Row]) -> Iterator[Sentence]:
    """What the lab says of classifiers; nothing where no full run of it is published."""
    for row in rows:
        if row.kind == "claim" and row.of in BEARING and facts.task == "classify":
            outcome, seeds = row.values["outcome"], row.values["seeds"]
            said = "is undecided" if outcome == "undecided" else outcome
            yield Sentence(
                f"The lab on {BEARING[row.of]} (small models, {seeds} seed{'s' * (seeds != 1)}): "
                f'"{row.values["claim"]}" {said}; vitrail lab {row.of} shows it.',
                (row,),
            )
