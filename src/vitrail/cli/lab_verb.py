"""The verb `lab`: claims of textbooks, measured; without a name it lists them."""

import argparse
import sys
import warnings
from pathlib import Path

from vitrail.cli.options import busy, show_report
from vitrail.errors import ConfigError, Notice


def add_options(verb: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    verb.add_argument("name", nargs="?", help="an experiment, or `all`; without it, experiments are listed")
    verb.add_argument("--quick", action="store_true", help="the small form, for a CPU; the full size otherwise")
    verb.add_argument("--seeds", metavar="N", type=int, help="how many seeds to measure (each experiment has its own)")
    verb.add_argument("--device", help="cpu, cuda, cuda:1, mps (default: cpu with --quick, a GPU otherwise)")
    verb.add_argument(
        "--results", metavar="FOLDER", type=Path, default=Path("runs") / "lab",
        help="where results are kept, one file a seed; what the same code has measured is not measured again (default "
        "runs/lab)",
    )  # fmt: skip
    verb.add_argument("--json", action="store_true", help="print the results as JSON instead of tables")
    verb.add_argument(
        "--out", metavar="FILE", type=Path, dest="html",
        help="where the HTML page with the charts is written, to read or print (default: NAME.html in --results)",
    )  # fmt: skip


def lab(options: argparse.Namespace) -> None:
    """Lists the experiments, or runs one or all of them."""
    from vitrail.hardware import device  # noqa: PLC0415
    from vitrail.lab import EXPERIMENTS, chosen  # noqa: PLC0415
    from vitrail.lab.booklet import booklet, findings_json, listing, page  # noqa: PLC0415
    from vitrail.lab.running import run_experiment  # noqa: PLC0415
    from vitrail.report import Report  # noqa: PLC0415

    if options.name is None:
        if given := [name for name in ("quick", "seeds", "device") if getattr(options, name)]:
            raise ConfigError(f"--{given[0]} needs the name of an experiment, or `all`")
        show_report(listing(EXPERIMENTS), options)
        return
    where = device("cpu" if options.quick and options.device is None else options.device)
    experiments = chosen(options.name)
    if options.results.exists() and not options.results.is_dir():
        raise ConfigError(f"--results {options.results} is a file; name a folder")
    if where.type == "cpu" and not options.quick:
        text = "on a CPU the full size takes minutes to hours an experiment; --quick measures the small form"
        warnings.warn(text, Notice, stacklevel=1)
    findings = []
    for number, experiment in enumerate(experiments, start=1):
        with busy(f"{number} of {len(experiments)}, {experiment.name}: {experiment.claim[:60]}"):
            found = run_experiment(
                experiment, quick=options.quick, seeds=options.seeds, device=where, folder=options.results
            )
        findings.append(found)
        if options.name == "all":  # which takes many minutes
            words = f"{number} of {len(experiments)}, {experiment.name}: {found.verdict.outcome}"
            print(words, file=sys.stderr, flush=True)  # noqa: T201
    report = booklet(findings) if options.name == "all" else page(findings[0])
    page_file = options.html or (None if options.json else options.results / f"{options.name}.html")
    if page_file is not None:
        page_file.parent.mkdir(parents=True, exist_ok=True)
        report.to_html(page_file)
    if options.json:
        print(findings_json(findings))  # noqa: T201
    else:
        short = Report(report.title, report.sections[:1]) if options.name == "all" else report  # of all, the verdicts
        short.print()
        print(f"charts: {page_file}")  # noqa: T201
