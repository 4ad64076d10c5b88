"""What is wrong in annotation files: each finding names the file and the line or annotation."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from vitrail.data.broken import MAX_BROKEN
from vitrail.report import show

_SHOWN = 5  # findings that a message lists


class Finding(NamedTuple):
    """One fault: where it is, what is wrong, the kind that it is counted under, and whether something was left out."""

    file: str
    where: str  # "line 12", "annotation 345"; empty for a whole file
    kind: str  # such as "Boxes without area, left out"
    problem: str
    serious: bool = True  # part of the truth was left out; too many of these stop training

    def __str__(self) -> str:
        return f"{self.file}{', ' if self.where else ''}{self.where}: {self.problem}"


class Findings(NamedTuple):
    """All faults of a source, and the number of annotations that it has."""

    items: tuple[Finding, ...] = ()
    total: int = 0

    @property
    def serious(self) -> tuple[Finding, ...]:
        """Those for which something was left out."""
        return tuple(item for item in self.items if item.serious)

    def by_kind(self) -> Mapping[str, list[Finding]]:
        """The findings of each kind."""
        kinds: dict[str, list[Finding]] = {}
        for item in self.items:
            kinds.setdefault(item.kind, []).append(item)
        return kinds

    def notes(self) -> Iterator[str]:
        """A sentence for each kind, with an example."""
        for kind, items in self.by_kind().items():
            yield f"{kind}: {len(items):,}, such as {items[0]}."

    def refusal(self) -> str | None:
        """Why training stops, if too much was left out; None otherwise."""
        if len(self.serious) / max(self.total, 1) <= MAX_BROKEN:
            return None
        return self._said(f", over the limit of {show(MAX_BROKEN, 'share')}")

    def problem(self) -> str | None:
        """What an audit ends with: the same, or what training would leave out; None if all can be used."""
        return self.refusal() or (self._said("; training leaves them out") if self.serious else None)

    def _said(self, consequence: str) -> str:
        serious = self.serious
        shown = "; ".join(map(str, serious[:_SHOWN]))
        more = f"; and {len(serious) - _SHOWN:,} more" if len(serious) > _SHOWN else ""
        return (
            f"{len(serious):,} of {self.total:,} annotations cannot be used{consequence}: {shown}{more}. Correct them; "
            "`vitrail doctor` lists them all"
        )


NO_FINDINGS = Findings()
