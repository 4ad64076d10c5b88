"""Further commands: a head without a recipe, and a search in a budget of time."""

import shlex
from collections.abc import Iterator, Sequence

from vitrail.advice.about_model import near_rows
from vitrail.advice.choose import Evidence, Judged, Limits
from vitrail.advice.facts import DataFacts
from vitrail.advice.sentence import Sentence

OUT = "runs/advised"
_MINUTES = 30.0  # of a search, where no limit is given


def data_words(facts: DataFacts, label: Sequence[str]) -> str:
    """The data as words of a command."""
    return shlex.quote(facts.source) + (f" --label {shlex.quote(','.join(label))}" if label else "")


def ways(
    facts: DataFacts, best: Judged, limits: Limits, evidence: Evidence, label: Sequence[str]
) -> Iterator[Sentence]:
    """Other commands: the linear head alone, and a search in a budget of time."""
    data = data_words(facts, label)
    if best.candidate.head_on is not None:
        words = f"vitrail probe {best.candidate.head_on} {data} --fit --out {OUT}"
        size = " at its usual size" if best.candidate.sizes else ""
        text = f"The same head{size} without a recipe, which is quick to fit again as images are added: {words}."
        yield Sentence(text, near_rows(best))
    minutes = _MINUTES if limits.minutes is None else limits.minutes
    words = f"vitrail train {data} --minutes {minutes:g}"
    aim = "To search for longer" if limits.minutes is None else "To search in that time"
    what = (
        f"{aim}: {words} tries the default, linear heads and fine-tuning, and keeps the "
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
