"""Abuse: mutants of everything that vitrail reads, against a live service, its loaders and its parsers. On loopback.

python benchmarks/abuse.py service [--uploads 50000] [--minutes 20] [--seed 0] [--json service.json]
python benchmarks/abuse.py loaders [--cases 2000] [--only run,onnx] [--seeds 17,39] [--json loaders.json]
python benchmarks/abuse.py guided [--minutes 2] [--only form,table]   # coverage-guided; needs atheris

`service` starts `vitrail serve packaged` and sends mutants while a normal client asks all the while. `loaders` gives
mutants to each loader in processes with limits on time and memory. Everything follows from the seed. The exit code is
1 where a fault was found.
"""

import argparse
import collections
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from rich.console import Console
from rich.table import Table

VERSIONS = ("torch", "uvicorn", "starlette", "h11", "pillow", "onnxruntime", "openvino")


def service(arguments: argparse.Namespace, console: Console) -> tuple[dict[str, Any], bool]:
    from support.abused.service import AttackPlan, attacked_service

    from vitrail.packaged import samples

    given = {name: value for name in AttackPlan._fields if (value := getattr(arguments, name)) is not None}
    plan = AttackPlan(**given)
    picture = next(iter(samples().values())).read_bytes()
    result = attacked_service("packaged", plan, picture, *arguments.options)
    table = Table("service", "")
    for key, value in result.items():
        if key != "faults":
            table.add_row(key, str(value))
    console.print(table)
    for fault in result["faults"]:
        console.print(f"FAULT: {fault}", markup=False)
    return result, not result["faults"]


def loaders(arguments: argparse.Namespace, console: Console) -> tuple[dict[str, Any], bool]:
    from support.abused.confined import Outcome, confined
    from support.abused.loaders import LOADERS

    names = arguments.only.split(",") if arguments.only else list(LOADERS)
    first = arguments.seed or 0
    seeds = (
        [int(seed) for seed in arguments.seeds.split(",")] if arguments.seeds else range(first, first + arguments.cases)
    )
    results: dict[str, Any] = {}
    table = Table("loader", "read", "refused", "faults", "slowest, s", "most, MB")
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            outcomes = list(confined(LOADERS[name], list(seeds), Path(folder)))
        counted = collections.Counter(one.result for one in outcomes)
        wrong: dict[str, list[Outcome]] = {}
        for one in outcomes:
            if not one.good:
                wrong.setdefault(f"{one.result}: {one.text.rpartition(' at ')[2][-80:]}", []).append(one)
        slowest, most = max(one.seconds for one in outcomes), max(one.megabytes for one in outcomes)
        bad = sum(map(len, wrong.values()))
        table.add_row(name, str(counted["read"]), str(counted["refused"]), str(bad), f"{slowest:.2f}", f"{most:.0f}")
        for some in wrong.values():
            seen = ", ".join(str(one.seed) for one in some[:4])
            console.print(f"{name}: {len(some)} x {some[0].result} (seeds {seen}): {some[0].text[:300]}", markup=False)
        results[name] = {
            **counted,
            "slowest_s": slowest,
            "most_mb": most,
            "faults": [one[0]._asdict() for one in wrong.values()],
        }
    console.print(table)
    return results, not any(result["faults"] for result in results.values())


def guided(arguments: argparse.Namespace, console: Console) -> tuple[dict[str, Any], bool]:
    from support.abused.guided import PARSERS, explored

    names = arguments.only.split(",") if arguments.only else list(PARSERS)
    seconds = 60 * (arguments.minutes or 0.5 * len(names)) / len(names)
    results = {name: explored(name, seconds, arguments.seed or 0) for name in names}
    table = Table("parser", "runs", "branches at first", "branches", "inputs kept", "faults")
    for name, one in results.items():
        table.add_row(name, *(str(one[key]) for key in ("runs", "first", "branches", "kept")), str(len(one["faults"])))
        for fault in one["faults"]:
            console.print(f"{name}: {fault}", markup=False)
    console.print(table)
    return results, not any(one["faults"] for one in results.values())


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("service", "loaders", "guided"))
    parser.add_argument("--seed", type=int)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", help="loaders or parsers, by commas")
    parser.add_argument("--cases", type=int, default=2_000, help="of each loader")
    parser.add_argument("--seeds", help="of these cases alone, by commas")
    parser.add_argument("--uploads", type=int)
    parser.add_argument("--connections", type=int, help="kept open for uploads (8)")
    parser.add_argument("--rate", type=float, help="uploads a second (evenly over nine tenths of the time)")
    parser.add_argument("--heavy", type=float, help="share of files that cost a decoder much (0.002)")
    parser.add_argument("--slow", type=int, help="clients that send a byte a second (20)")
    parser.add_argument("--pause", type=float, help="seconds between two requests of the normal client (0.05)")
    parser.add_argument("--alone", type=float, help="seconds of the normal client before the attack (60)")
    parser.add_argument("--memory", type=float, help="MB that the service may have (default: as docs/serve.md states)")
    parser.add_argument("options", nargs="*", help="after --: options of vitrail serve")
    return parser.parse_args()


def main() -> int:
    arguments = parsed()
    console = Console(width=None if sys.stdout.isatty() else 160)
    result, good = {"service": service, "loaders": loaders, "guided": guided}[arguments.what](arguments, console)
    if arguments.json:
        about = {"command": " ".join(sys.argv), "machine": platform.processor() or platform.machine()}
        about |= {"cores": os.cpu_count(), **{name: importlib.metadata.version(name) for name in VERSIONS}}
        arguments.json.write_text(json.dumps({"about": about, "result": result}, indent=2, default=str))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
