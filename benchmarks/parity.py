"""Parity with other libraries: the largest relative error of every case, in float64, against their own model.

python benchmarks/parity.py [--only dinov3] [--json parity.json]

The exit status is 1 if an error is above 1e-5, or if there is no case to compare.
"""

import argparse
import importlib.metadata
import json
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch
from parity.compare import Case, compare
from parity.families import all_cases, family_name
from parity.heads import HeadCase, head_cases, head_errors
from rich.console import Console
from rich.table import Table
from support import peers

LIMIT = 1e-5  # far above the error of float32 tables of rotary positions, far below that of a wrong weight


def measure(case: Case) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        errors = compare(case, Path(folder))
        seconds = time.perf_counter() - start
        family = family_name(case, Path(folder))
    height, width = case.image_size
    return {
        "family": family,
        "peer": case.peer,
        "model": case.name,
        "image_size": f"{height}x{width}",
        "logits": errors.logits,
        "features": errors.features,
        "seconds": round(seconds, 3),
    }


def measure_head(case: HeadCase) -> dict[str, Any]:
    """A whole model with a head: its outputs take the place of logits."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        errors = head_errors(case, Path(folder))
        seconds = time.perf_counter() - start
    height, width = case.image_size
    return {
        "family": "with a head",
        "peer": "hf",
        "model": case.name,
        "image_size": f"{height}x{width}",
        "logits": max(errors.values()),
        "features": 0.0,
        "seconds": round(seconds, 3),
    }


def worst(row: dict[str, Any]) -> float:
    return max(row["logits"], row["features"])


def shown(rows: list[dict[str, Any]]) -> Table:
    table = Table("family", "peer", "model", "image", "logits", "features", title="largest relative error in float64")
    for row in rows:
        numbers = (f"{row['logits']:.1e}", f"{row['features']:.1e}")
        table.add_row(row["family"], row["peer"], row["model"], row["image_size"], *numbers)
    return table


def written(rows: list[dict[str, Any]]) -> str:
    versions = {name: importlib.metadata.version(name) for name in ("torch", "timm", "transformers", "torchvision")}
    about = {"command": " ".join(sys.argv), "machine": platform.machine(), "threads": torch.get_num_threads()}
    return json.dumps(about | {"versions": versions, "rows": rows}, indent=2) + "\n"


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="cases whose peer or name contains this")
    parser.add_argument("--json", type=Path, help="write the table and the versions here")
    arguments = parser.parse_args(words)

    peers.transformers.logging.disable_progress_bar()
    peers.transformers.logging.set_verbosity_error()
    cases = [case for case in all_cases() if arguments.only in f"{case.peer} {case.name}"]
    heads = [case for case in head_cases() if arguments.only in f"hf {case.name}"]
    if not cases and not heads:
        some = ", ".join(dict.fromkeys(case.peer for case in all_cases()))
        sys.exit(f"--only {arguments.only} is in the name of no case; give a part of a model's name, or a peer: {some}")
    rows = [*(measure(case) for case in cases), *(measure_head(case) for case in heads)]
    Console(width=None if sys.stdout.isatty() else 120).print(shown(rows))
    print(f"{len(rows)} configurations, worst relative error {max(map(worst, rows)):.1e}")
    if arguments.json:
        arguments.json.write_text(written(rows))
    if wrong := [f"{row['peer']} {row['model']}" for row in rows if worst(row) > LIMIT]:
        sys.exit(
            f"{len(wrong)} of {len(rows)} are not the peer's: the error is above {LIMIT:.0e} in {'; '.join(wrong)}"
        )


if __name__ == "__main__":
    main()
