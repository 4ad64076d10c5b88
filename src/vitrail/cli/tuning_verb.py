"""`train --minutes`: a search in a budget of time from the command line."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.cli.options import busy
from vitrail.errors import ConfigError

if TYPE_CHECKING:
    from vitrail.training.tuning import Tuned


def add_options(verb: argparse.ArgumentParser) -> None:
    """Adds --minutes."""
    verb.add_argument(
        "--minutes", metavar="M", type=float,
        help="search for the best run in this time: weights, model, image size, linear head, rate, augmentation",
    )  # fmt: skip


def is_search(folder: Path) -> bool:
    """Whether a folder that is to be resumed holds a search."""
    from vitrail.training.tuning.journal import is_tuned  # noqa: PLC0415

    return is_tuned(folder)


def search(options: argparse.Namespace, what: dict[str, Any]) -> None:
    """Searches, or goes on with a search, and writes the report."""
    from vitrail.training.tuning import tune  # noqa: PLC0415

    refused = {"--verify-resume": options.verify_resume, "--folds": options.folds, "--log": options.log or None}
    refused |= {"--shard": None if options.shard == "ddp" else options.shard}
    if given := [name for name, value in refused.items() if value is not None]:
        raise ConfigError(f"--minutes and {', '.join(given)} cannot be used together; leave out one of them")
    resume = options.resume is not None
    found = tune(
        options.data, minutes=options.minutes, folder=options.resume if resume else options.folder, resume=resume,
        device=options.device, say=_say, **what,
    )  # fmt: skip
    _show(found)


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def _show(found: "Tuned") -> None:
    print(found)  # noqa: T201
    print(f"the chosen model is in {found.folder}")  # noqa: T201
    with busy("writing the report"):
        file = found.report()
    print(f"report: {file}")  # noqa: T201
