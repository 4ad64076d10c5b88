"""Time to accuracy: whole runs, from the start of the process to the figure on test images, one after the other.

    python benchmarks/time_to_accuracy.py --data cifar10 --json time.json -- --recipe cifar10-small --epochs 60
    python benchmarks/time_to_accuracy.py --data demo --seeds 0 -- --recipe demo --epochs 1 --device cpu

What follows `--` is passed on to `vitrail train`. Each run is a process of its own; its time is that of the process,
and the first step, which is where a model is compiled, is stated apart. The table has accuracy on test images, seconds
and the curve of validation accuracy by seconds; the medians over seeds come last.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from vitrail.timing import machine

FIRST = re.compile(r"first step (?P<seconds>\d+\.\d) s")


def run(data: str, seed: int, folder: Path, more: list[str]) -> dict[str, Any]:
    """One run: its accuracy, its time, and its curve."""
    command = [sys.executable, "-m", "vitrail", "train", data, "--seed", str(seed), "--out", str(folder), *more]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    found = FIRST.search(done.stderr)
    metrics = json.loads((folder / "best.json").read_text())["metrics"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    taken, curve = 0.0, []
    for line in lines:
        taken += line["seconds"]
        if "val/accuracy" in line:
            curve.append((round(taken, 2), line["val/accuracy"]))
    first = 0.0 if found is None else float(found["seconds"])
    return {"seed": seed, "test": metrics.get("test_accuracy"), "validation": metrics["accuracy"], "seconds": seconds,
            "first_step": first, "epochs": len(lines), "curve": curve}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--json", type=Path)
    parser.add_argument("more", nargs="*", metavar="-- OPTIONS", help="of vitrail train")
    chosen, rows = parser.parse_args(), []
    with tempfile.TemporaryDirectory() as folder:
        for seed in chosen.seeds:
            row = run(chosen.data, seed, Path(folder, str(seed)), chosen.more)
            rows.append(row)
            shown = "no test images" if row["test"] is None else f"test {row['test']:.2%}"
            print(
                f"seed {seed}: {shown}, validation {row['validation']:.2%}, {row['seconds']:.1f} s, of which the first "
                f"step {row['first_step']:.1f} s; {row['curve']}",
                flush=True,
            )
            setting = machine(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
            if chosen.json:
                chosen.json.write_text(json.dumps({"setting": setting, "options": chosen.more, "runs": rows}, indent=1))
    middle = {key: statistics.median(row[key] for row in rows) for key in ("validation", "seconds", "first_step")}
    print(f"medians of {len(rows)}: {middle}; {setting}")


if __name__ == "__main__":
    main()
