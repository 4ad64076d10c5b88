"""The verb `compare`: runs of one task on the same images."""

import argparse

from vitrail.cli.options import DEVICES, busy, show_found


def add_options(verb: argparse.ArgumentParser) -> None:
    """The options of the verb; those of the output are added by the caller."""
    verb.add_argument(
        "runs", nargs="+", metavar="RUN", help="folders of runs; the first is what others are held against"
    )
    verb.add_argument(
        "--data", help="labelled images to compare on, as for eval (default: the runs' test or validation images)"
    )
    verb.add_argument("--label", metavar="COLUMN", help="the column of a table of --data with the target")
    verb.add_argument(
        "--resamples", metavar="N", type=int, help="bootstrap resamples (default 1000, or what takes about a minute)"
    )
    verb.add_argument("--batch-size", type=int, default=256, help="images at a time (default 256)")
    verb.add_argument("--device", help=DEVICES)


def compare(options: argparse.Namespace) -> None:
    """Compares runs and prints the report, or JSON."""
    from vitrail.api import compare as compare_runs  # noqa: PLC0415

    with busy(f"comparing {len(options.runs)} runs"):
        found = compare_runs(
            *options.runs, data=options.data, label=options.label, resamples=options.resamples,
            device=options.device, batch_size=options.batch_size,
        )  # fmt: skip
    show_found(found, options)
