"""`train --folds`: k-fold cross-validation from the command line."""

import argparse
from pathlib import Path
from typing import Any

from vitrail.cli.options import busy
from vitrail.errors import ConfigError


def add_options(verb: argparse.ArgumentParser) -> None:
    """Adds --group and --folds."""
    verb.add_argument(
        "--group", metavar="RULE",
        help="keep images of one group in one split: a column of the table, a pattern of the paths, or `duplicates`",
    )  # fmt: skip
    verb.add_argument(
        "--folds", metavar="K", type=int,
        help="train K models, each without a K-th of the images: out-of-fold predictions, intervals, an ensemble",
    )  # fmt: skip


def is_folds(folder: Path) -> bool:
    """Whether a folder that is to be resumed holds folds."""
    from vitrail.training.folds.cross_validation import is_folds as is_held  # noqa: PLC0415

    return is_held(folder)


def train_folds(options: argparse.Namespace, what: dict[str, Any]) -> None:
    """Trains all folds, or those that are left, and writes the report."""
    from vitrail.training.folds import train_folds as start  # noqa: PLC0415

    refused = {"--verify-resume": options.verify_resume, "--log": options.log or None}
    refused |= {"--shard": None if options.shard == "ddp" else options.shard}
    if given := [name for name, value in refused.items() if value is not None]:
        raise ConfigError(f"--folds and {', '.join(given)} cannot be used together; leave out one of them")
    if options.resume is not None:
        found = start(folder=options.resume, resume=True, device=options.device, say=print, **what)
    else:
        found = start(
            options.data, folds=options.folds, folder=options.folder, device=options.device, say=print, **what
        )
    print(found)  # noqa: T201
    print(f"out-of-fold predictions: {found.folder / 'out_of_fold.csv'}")  # noqa: T201
    if found.ensemble is not None:
        print(found.ensemble.about)  # noqa: T201
    with busy("writing the report"):
        file = found.report()
    print(f"report: {file}")  # noqa: T201
