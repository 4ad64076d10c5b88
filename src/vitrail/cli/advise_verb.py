"""The verb `advise`: what to train, from measured rows."""

import argparse
import re

from vitrail.cli.options import busy, show_found
from vitrail.errors import ConfigError

_LATENCY = {"ms": 1.0, "s": 1000.0}
_MEMORY = {"kB": 1e3 / 2**20, "MB": 1e6 / 2**20, "GB": 1e9 / 2**20, "MiB": 1.0, "GiB": 1024.0}


def add_options(verb: argparse.ArgumentParser) -> None:
    """The options of the verb; those of the output are added by the caller."""
    verb.add_argument("data", help="what you would train on")
    verb.add_argument(
        "--device",
        help="cpu, cuda, mps: measured here, for up to a minute; or a machine of the measured rows: epyc, h200",
    )
    verb.add_argument("--latency", metavar="TIME", help="what one answer may take: 20ms, 0.5s")
    verb.add_argument("--memory", metavar="SIZE", help="what a process that answers may use: 500MB, 1GB")
    verb.add_argument("--minutes", metavar="N", type=float, help="what training may take")
    verb.add_argument("--task", metavar="KIND", help="classify, detect ...; inferred if left out")
    verb.add_argument("--label", metavar="COLUMN", help="the column of a table with the target")


def advise(options: argparse.Namespace) -> None:
    """Prints advice, or JSON."""
    from vitrail.api import advise as advise_for  # noqa: PLC0415

    latency, memory = quantity(options.latency, "latency", _LATENCY), quantity(options.memory, "memory", _MEMORY)
    with busy(f"looking at {options.data} and measuring this machine"):
        found = advise_for(
            options.data, device=options.device, latency=latency, memory=memory, minutes=options.minutes,
            task=options.task, label=options.label,
        )  # fmt: skip
    show_found(found, options)


def quantity(text: str | None, name: str, units: dict[str, float]) -> float | None:
    """`20ms` or `500MB` as a number in the first unit of measured rows: milliseconds, or MiB."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.strip().lower())
    known = {unit.lower(): factor for unit, factor in units.items()}
    if found is None or found[2] not in known:
        what, example = {"latency": ("time", "20ms"), "memory": ("size", "500MB")}[name]
        raise ConfigError(
            f"--{name} {text!r} is not a {what} with a unit ({', '.join(units)}); write --{name} {example}"
        )
    return float(found[1]) * known[found[2]]
