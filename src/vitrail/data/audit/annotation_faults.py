"""Faults of annotations in the doctor's report: those of files, and values that do not fit their images."""

from collections.abc import Sequence

from vitrail.data.findings import Findings
from vitrail.report import Section, Table, Value

_SHOWN = 1000  # rows of the table


def fault_sections(findings: Findings, misfits: Sequence[tuple[str, str]], advice: list[str]) -> list[Section]:
    """How often each fault occurs, and each of them up to a limit; `misfits` are images and what is wrong with them.

    Nothing if all is well.
    """
    kinds = findings.by_kind()
    if misfits:
        advice.append(
            f"Annotations that do not fit their image: {len(misfits):,}. They may be of another version of it."
        )
    if findings.serious:
        stops = "; training would stop" if findings.refusal() is not None else ""
        advice.append(
            f"Annotations that cannot be used: {len(findings.serious):,} of {findings.total:,}{stops}. Correct them."
        )
    if not kinds and not misfits:
        return []
    counts: list[dict[str, Value]] = [{"fault": kind, "count": len(items)} for kind, items in kinds.items()]
    counts += [{"fault": "Annotations that do not fit their image", "count": len(misfits)}] if misfits else []
    each = max(_SHOWN // max(len(counts), 1), 1)
    rows: list[dict[str, Value]] = [
        {"file": item.file, "where": item.where, "problem": item.problem}
        for items in kinds.values()
        for item in items[:each]
    ]
    rows += [{"file": where, "where": "", "problem": problem} for where, problem in misfits[:each]]
    columns = ("file", "where", "problem") if any(row["where"] for row in rows) else ("file", "problem")
    title = "Faults" if len(rows) == len(findings.items) + len(misfits) else f"Faults, the first {each} of each kind"
    return [
        Table("Faults of annotations", {"fault": "", "count": ""}, tuple(counts)),
        Table(title, dict.fromkeys(columns, ""), tuple(rows)),
    ]
