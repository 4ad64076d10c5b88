"""Faults of annotations in the doctor's report: those of files, and values that do not fit their images."""

from collections.abc import Sequence

from vitrail.data.findings import Findings
from vitrail.report import Report, Section, Table, Value

MISFIT = "Annotations that cannot be read or do not fit their image"
_SHOWN = 1000  # rows of the table


def fault_sections(findings: Findings, misfits: Sequence[tuple[str, str]], advice: list[str]) -> list[Section]:
    """How often each fault occurs, and each of them up to a limit; `misfits` are images and what is wrong with them.

    Nothing if all is well.
    """
    kinds = findings.by_kind()
    if misfits:
        advice.append(
            f"{MISFIT}: {len(misfits):,}. They may be damaged, or of another version of the image. Correct them."
        )
    if findings.serious:
        stops = "; training would stop" if findings.refusal() is not None else ""
        advice.append(
            f"Annotations that cannot be used: {len(findings.serious):,} of {findings.total:,}{stops}. Correct them."
        )
    if not kinds and not misfits:
        return []
    counts: list[dict[str, Value]] = [{"fault": kind, "count": len(items)} for kind, items in kinds.items()]
    counts += [{"fault": MISFIT, "count": len(misfits)}] if misfits else []
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


def misfit_problem(report: Report) -> str | None:
    """What an audit ends with where values of images cannot be read or do not fit; None if all do."""
    tables = [section for section in report.sections if isinstance(section, Table)]
    count = next((row["count"] for table in tables for row in table.rows if row.get("fault") == MISFIT), None)
    if count is None:
        return None
    last = next(table for table in tables if table.title.startswith("Faults,") or table.title == "Faults").rows[-1]
    return (
        f"{MISFIT}: {count:,}, such as {last['file']}: {last['problem']}. Correct them; the table of faults lists them"
    )
