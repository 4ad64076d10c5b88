"""Measures recipes: runs a chain of recipes and reports the test metric (accuracy, AP, mIoU), for each seed.

python benchmarks/recipes.py cifar10-small-mae cifar10-small --data FOLDER [--seeds 0 1 2] [--json recipes.json]

Each recipe after the first starts from the model of the previous one. Only the last one is evaluated on test images,
once. recipes.json in this folder has the results; `--json` adds to such a file, or replaces the result of a seed.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import vitrail


def measure(
    recipes: list[str], data: str, *, seed: int, val: float | None, folder: Path, start: str | Path | None
) -> dict[str, Any]:
    began, run = time.perf_counter(), None
    for recipe in recipes:
        place = folder / f"{recipe}-{seed}"
        run = vitrail.train(data, recipe=recipe, folder=place, start=start, val=val, seed=seed, silent=True)
        start = place
    if run is None:
        raise SystemExit("pass at least one recipe")
    metric = run.task.best_metric
    return {
        "seed": seed,
        "seconds": round(time.perf_counter() - began, 1),
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        "validation": run.metrics[metric],
        "test": run.metrics.get(f"test_{metric}"),
        "metric": metric,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--data", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--val", type=float, help="share of the images that is held out; by default the data's own split"
    )
    parser.add_argument("--from", dest="start", help="weights with which the first recipe begins")
    parser.add_argument("--out", type=Path, help="keep the runs here")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.out or Path(temporary)
        rows = []
        for seed in arguments.seeds:
            kind = {"val": arguments.val, "folder": folder, "start": arguments.start}
            rows.append(measure(arguments.recipes, arguments.data, seed=seed, **kind))
            print(rows[-1], flush=True)
    table = Table("seed", "seconds", "validation", "test", title=" > ".join(arguments.recipes))
    for row in rows:
        test = "" if row["test"] is None else f"{row['test']:.2%}"
        table.add_row(str(row["seed"]), f"{row['seconds']:.0f}", f"{row['validation']:.2%}", test)
    Console(width=100).print(table)
    tests = [row["test"] for row in rows if row["test"] is not None]
    if tests:
        print(f"median test {rows[0]['metric']} {statistics.median(tests):.2%}, {min(tests):.2%} to {max(tests):.2%}")
    if arguments.json:
        record(arguments.json, " > ".join(arguments.recipes), Path(arguments.data).name, rows)


def record(file: Path, chain: str, data: str, rows: list[dict[str, Any]]) -> None:
    """Adds the results of a chain of recipes to a file; replaces those of the same seeds."""
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    seeds = {row["seed"] for row in rows}
    known = json.loads(file.read_text()) if file.exists() else []
    kept = [row for row in known if (row["recipes"], row["data"]) != (chain, data) or row["seed"] not in seeds]
    fresh = [{"recipes": chain, "data": data, **row, "device": where, "torch": torch.__version__} for row in rows]
    rows = sorted(kept + fresh, key=lambda row: (row["recipes"], row["data"], row["seed"]))
    lines = [json.dumps(row) for row in rows]
    file.write_text("[\n" + ",\n".join(f"  {line}" for line in lines) + "\n]\n")


if __name__ == "__main__":
    main()
