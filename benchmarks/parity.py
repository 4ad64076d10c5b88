"""Parity with the peers: every case's largest relative error, in float64, against the peer's own model.

python benchmarks/parity.py [--only dinov3] [--json parity.json]
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

import peers
import torch
from parity import Case, compare
from parity_families import all_cases
from rich.console import Console
from rich.table import Table


def measure(case: Case) -> dict[str, Any]:
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        errors = compare(case, Path(folder))
    height, width = case.image_size
    return {
        "peer": case.peer,
        "model": case.name,
        "image_size": f"{height}x{width}",
        "logits": errors.logits,
        "features": errors.features,
        "seconds": round(time.perf_counter() - start, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="cases whose peer or name contains this")
    parser.add_argument("--json", type=Path, help="write the table and the versions here")
    arguments = parser.parse_args()

    peers.transformers.logging.disable_progress_bar()
    peers.transformers.logging.set_verbosity_error()
    rows = [measure(case) for case in all_cases() if arguments.only in f"{case.peer} {case.name}"]
    table = Table("peer", "model", "image", "logits", "features", title="largest relative error in float64")
    for row in rows:
        numbers = (f"{row['logits']:.1e}", f"{row['features']:.1e}")
        table.add_row(row["peer"], row["model"], row["image_size"], *numbers)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    worst = max((max(row["logits"], row["features"]) for row in rows), default=0.0)
    print(f"{len(rows)} configurations, worst relative error {worst:.1e}")
    if arguments.json:
        packages = ("torch", "timm", "transformers", "torchvision")
        versions = {name: importlib.metadata.version(name) for name in packages}
        about = {"command": " ".join(sys.argv), "machine": platform.machine(), "threads": torch.get_num_threads()}
        arguments.json.write_text(json.dumps(about | {"versions": versions, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
