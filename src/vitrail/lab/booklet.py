"""Reports of experiments: the list of all, the page of one, and a booklet with the verdicts in front."""

from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.lab.estimates import Estimate
from vitrail.lab.experiment import Check, Experiment, Verdict
from vitrail.lab.fingerprints import fingerprint
from vitrail.lab.machine import slowness
from vitrail.lab.records import Record, published
from vitrail.lab.running import Finding
from vitrail.report import Code, Facts, Group, Report, Section, Table, Text, Value, show
from vitrail.report.values import duration
from vitrail.strict_json import to_json


def listing(experiments: Sequence[Experiment]) -> Report:
    """All experiments: claim, source, and the time of the quick form on this machine."""
    slower = slowness()
    rows: list[dict[str, Value]] = [
        {
            "name": experiment.name,
            "claim": experiment.claim,
            "source": experiment.source,
            "quick": duration(slower * experiment.seconds * experiment.seeds),
            "full run": "no" if (full := published(experiment)) is None else experiment.conclude(full.results).outcome,
        }
        for experiment in experiments
    ]
    total = duration(slower * sum(experiment.seconds * experiment.seeds for experiment in experiments))
    text = (
        f"vitrail lab NAME --quick runs one on a CPU; vitrail lab all --quick --out booklet.html all, in about {total}."
    )
    columns = dict.fromkeys(("name", "claim", "source", "quick", "full run"), "")
    return Report("Experiments: claims of textbooks, measured", (Table("", columns, rows), Text("", text)))  # type: ignore[arg-type]


def page(finding: Finding) -> Report:
    """The report of one experiment."""
    return Report(finding.experiment.title, _sections(finding))


def booklet(findings: Sequence[Finding]) -> Report:
    """The verdicts of all experiments and how they were measured, then a part for each."""
    rows: list[Mapping[str, Value]] = [
        {
            "experiment": finding.experiment.name,
            "claim": finding.experiment.claim,
            "verdict": finding.verdict.outcome,
            "full run": None if finding.published is None else _published_verdict(finding).outcome,
        }
        for finding in findings
    ]
    columns = dict.fromkeys(("experiment", "claim", "verdict", "full run"), "")
    first = Table("Verdicts", columns, rows)  # type: ignore[arg-type]
    parts = [Group(finding.experiment.title, _sections(finding)) for finding in findings]
    return Report("Claims about vision transformers, measured", (first, _all_measured(findings), *parts))


def _all_measured(findings: Sequence[Finding]) -> Facts:
    """The form, the machine and the time of all experiments."""
    records = [finding.record for finding in findings]
    told = {
        "form": {"quick, for a CPU" if finding.quick else "full size" for finding in findings},
        "machine": {f"{record.hardware} ({record.device})" for record in records},
        "versions": {", ".join(f"{name} {one}" for name, one in record.versions.items()) for record in records},
        "seeds": {str(len(record.runs)) for record in records},
    }
    seconds = sum(run.seconds for record in records for run in record.runs)
    facts = {name: "; ".join(sorted(values)) for name, values in told.items()}
    return Facts("How they were measured", facts | {"time": duration(seconds)})


def to_data(finding: Finding) -> dict[str, Any]:
    """A finding as dicts and lists; its `record` is what the package keeps of a full run."""
    verdict = finding.verdict
    return {
        "verdict": verdict.outcome,
        "text": verdict.text,
        "checks": [
            {"text": check.text, "status": check.status, "essential": check.essential, "found": check.found._asdict()}
            for check in verdict.checks
        ],
        "record": finding.record.to_data(),
    }


def findings_json(findings: Sequence[Finding]) -> str:
    """Findings as JSON: one object, or a list of several."""
    data = [to_data(finding) for finding in findings]
    return to_json(data[0] if len(data) == 1 else data, indent=2)


def _sections(finding: Finding) -> tuple[Section, ...]:
    experiment = finding.experiment
    about = Facts(
        "Claim",
        {
            "claim": experiment.claim,
            "source": experiment.source,
            "prediction": experiment.prediction,
            "it fails if": experiment.falsifier,
        },
    )
    parts: list[Section] = [about, *_judged("Verdict", finding.verdict), *experiment.figures(finding.record.results)]
    if finding.published is not None:
        parts += _judged("Verdict of the full run", _published_verdict(finding))
        figures = experiment.figures(finding.published.results)
        same = finding.published.fingerprint == fingerprint(experiment)
        notes = () if same else (Text("", "The code of this experiment has changed since this run."),)
        parts.append(Group("The full run", (*notes, *figures, _how(finding.published)), folded=True))
    return (*parts, _how(finding.record))


def _judged(title: str, verdict: Verdict) -> list[Section]:
    sentence = f"{verdict.outcome[0].upper()}{verdict.outcome[1:]}{f'. {verdict.text}' if verdict.text else ''}."
    columns = dict.fromkeys(("consequence of the claim", "measured", "95 % interval", "must be", "result"), "")
    rows: list[Mapping[str, Value]] = [
        {
            "consequence of the claim": check.text,
            "measured": show(check.found.value, check.unit),
            "95 % interval": interval_text(check.found, check),
            "must be": range_text(check),
            "result": check.status
            if check.essential or check.status == "holds"
            else f"{check.status} (limits the range)",
        }
        for check in verdict.checks
    ]
    return [Text(title, sentence), Table("", columns, rows)]  # type: ignore[arg-type]


def interval_text(found: Estimate, check: Check) -> str:
    """An interval as text; a single seed has none."""
    if found.seeds == 1:
        return "one seed"
    return f"{show(found.low, check.unit)} to {show(found.high, check.unit)}"


def range_text(check: Check) -> str:
    """The range of a check in words."""
    least, most = (show(end, check.unit) for end in (check.least, check.most))
    if check.least == float("-inf"):
        return f"at most {most}"
    return f"at least {least}" if check.most == float("inf") else f"{least} to {most}"


def _published_verdict(finding: Finding) -> Verdict:
    assert finding.published is not None  # noqa: S101  (callers ask first)
    return finding.experiment.conclude(finding.published.results)


def _how(record: Record) -> Code:
    seconds = sum(run.seconds for run in record.runs)
    seeds = f"{len(record.runs)} seed{'s' if len(record.runs) != 1 else ''}"
    told = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    settings = "\n".join(f"  {name}: {to_json(value)}" for name, value in record.settings.items())
    text = f"{record.command}\n{record.hardware}; {told}; {seeds}, {duration(seconds)}\nsettings\n{settings}"
    return Code("How it was measured", text, folded=True)
