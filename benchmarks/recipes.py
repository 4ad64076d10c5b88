"""Measures recipes: runs a chain of recipes and reports the test metric (accuracy, AP, mIoU), for each seed.

    python benchmarks/recipes.py cifar10-small-mae cifar10-small --data FOLDER [--seeds 0 1 2] [--json recipes.json]
    python benchmarks/recipes.py camvid-unet --data camvid --parallel 3 --tta     # all seeds at once; also with flips

Each recipe after the first starts from the model of the previous one. Only the last one is evaluated on test images,
once. recipes.json in this folder has the results; `--json` adds to such a file, or replaces the result of a seed, as
soon as it is known.
"""

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import vitrail


def measure(
    seed: int, recipes: list[str], data: str, *, val: float | None, folder: Path, start: str | Path | None,
    epochs: int | None, tta: bool,
) -> dict[str, Any]:  # fmt: skip
    began, run, shorter = time.perf_counter(), None, {} if epochs is None else {"epochs": epochs}
    for recipe in recipes:
        place = folder / f"{recipe}-{seed}"
        run = vitrail.train(data, recipe=recipe, folder=place, start=start, val=val, seed=seed, silent=True, **shorter)
        start = place
    assert run is not None
    metric, seconds = run.task.best_metric, round(time.perf_counter() - began, 1)
    viewed = vitrail.evaluate(start, data, tta="flip").views if tta else None
    return {
        "seed": seed,
        "seconds": seconds,
        "parameters": sum(parameter.numel() for parameter in run.task.parameters()),
        "validation": run.metrics[metric],
        "test": run.metrics.get(f"test_{metric}"),
        "metric": metric,
    } | ({} if viewed is None else {"test_flips": viewed.metrics[metric]})


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
    parser.add_argument("--epochs", type=int, help="of each recipe; by default its own")
    parser.add_argument("--parallel", type=int, default=1, help="seeds at once")
    parser.add_argument("--tta", action="store_true", help="also the mean with mirrored images")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.out or Path(temporary)
        options = {"val": arguments.val, "folder": folder, "start": arguments.start, "epochs": arguments.epochs}
        spawned = multiprocessing.get_context("spawn")  # each has a CUDA context of its own
        with ProcessPoolExecutor(arguments.parallel, mp_context=spawned) as pool:
            todo = [
                pool.submit(measure, seed, arguments.recipes, arguments.data, tta=arguments.tta, **options)
                for seed in arguments.seeds
            ]
            for one in as_completed(todo):
                rows.append(one.result())
                print(rows[-1], flush=True)
                if arguments.json:
                    record(arguments.json, " > ".join(arguments.recipes), Path(arguments.data).name, rows)
    table = Table("seed", "seconds", "validation", "test", "test with flips", title=" > ".join(arguments.recipes))
    for row in sorted(rows, key=lambda row: row["seed"]):
        shares = [f"{row[key]:.2%}" if row.get(key) else "" for key in ("validation", "test", "test_flips")]
        table.add_row(str(row["seed"]), f"{row['seconds']:.0f}", *shares)
    Console(width=100).print(table)
    tests = [row["test"] for row in rows if row["test"] is not None]
    if tests:
        print(f"median test {rows[0]['metric']} {statistics.median(tests):.2%}, {min(tests):.2%} to {max(tests):.2%}")


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
