"""Compares variants of a recipe by their validation metric, several at a time on one device, within a time limit.

    python benchmarks/sweep.py benchmarks/camvid.yaml --data drives --parallel 12 --minutes 6 --json sweep.json
    python benchmarks/sweep.py benchmarks/camvid.yaml --data drives --only base all -- --epochs 20 --device cpu

The file names a recipe, the metric (higher is better), changes for all (`common`) and the variants, each a list of
what `vitrail train --set` takes. `factors` are changes that are each made in half of the runs, by a design in which
they do not disturb one another (Plackett and Burman 1946): N runs measure N - 1 changes, each as well as N runs of one
change alone would. What follows `--` is passed on to `vitrail train`. At the time limit runs are stopped;
what they reached until then counts, and is marked, as a schedule that was cut short is not comparable. Test images are
not looked at: measure the variant that wins with benchmarks/recipes.py, once.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from rich.console import Console
from rich.table import Table

PATIENCE = 60  # seconds for a run to store its state once it is told to stop
LEAST = 5  # factors: with fewer, some of 12 runs would be the same
PLACKETT_BURMAN = ("++-+++---+-", "++--++++-+-+----++-")  # first rows of the designs of 12 and 20 runs


class Job(NamedTuple):
    """One run: its variant and seed, its folder and the command that makes it."""

    variant: str
    seed: int
    folder: Path
    command: list[str]


def design(factors: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Runs by name, the names of their factors joined by "+": 12 for 5 to 11 factors, 20 for up to 19."""
    if not factors:
        return {}
    if len(factors) < LEAST:
        raise SystemExit(f"{len(factors)} factors are too few for a design, at least {LEAST} are needed; use variants")
    row = next((signs for signs in PLACKETT_BURMAN if len(signs) >= len(factors)), None)
    if row is None:
        raise SystemExit(f"{len(factors)} factors are too many; at most {len(PLACKETT_BURMAN[-1])} are allowed")
    rows = [row[-turn:] + row[:-turn] if turn else row for turn in range(len(row))] + ["-" * len(row)]
    found = {}
    for signs in rows:
        names = [name for name, sign in zip(factors, signs, strict=False) if sign == "+"]
        found["+".join(names) or "none"] = [change for name in names for change in factors[name]]
    return found


def effects(rows: Sequence[Mapping[str, Any]], factors: Sequence[str]) -> list[tuple[str, float, float]]:
    """What each factor adds to the last validation metric, and its standard error, by least squares; largest first."""
    judged = [one for one in rows if "last" in one and {*one["variant"].split("+")} <= {*factors, "none"}]
    if len(judged) <= len(factors) + 1:
        return []
    on = [[1.0, *(float(name in one["variant"].split("+")) for name in factors)] for one in judged]
    inputs, values = np.array(on), np.array([one["last"] for one in judged])
    found, _, rank, _ = np.linalg.lstsq(inputs, values, rcond=None)
    spread = ((values - inputs @ found) ** 2).sum() / max(len(values) - rank, 1)
    errors = np.sqrt(spread * np.linalg.pinv(inputs.T @ inputs).diagonal())
    each = zip(factors, found[1:].tolist(), errors[1:].tolist(), strict=True)
    return sorted(each, key=lambda one: -one[1])


def jobs(plan: Mapping[str, Any], args: argparse.Namespace, folder: Path) -> list[Job]:
    """Every variant with every seed."""
    variants = design(plan.get("factors", {})) | plan.get("variants", {})
    if unknown := sorted(set(args.only or ()) - set(variants)):
        raise SystemExit(f"no variant is called {', '.join(unknown)}; known: {', '.join(variants)}")
    found = []
    for seed in args.seeds:
        for name in args.only or variants:
            out = folder / f"{name}-{seed}"
            changes = [part for change in [*plan.get("common", []), *variants[name]] for part in ("--set", change)]
            command = [sys.executable, "-m", "vitrail", "train", args.data, "--recipe", plan["recipe"]]
            found.append(Job(name, seed, out, [*command, "--seed", str(seed), "--out", str(out), *changes, *args.more]))
    return found


def run(todo: Sequence[Job], *, parallel: int, seconds: float) -> Iterator[tuple[Job, bool]]:
    """Each job when it ends, and whether it came to its end; at most `parallel` at a time, for so many seconds."""
    waiting, running = list(todo), list[tuple[Job, subprocess.Popen[bytes]]]()
    end = time.monotonic() + seconds
    try:
        while waiting or running:
            while waiting and len(running) < parallel and time.monotonic() < end:
                job = waiting.pop(0)
                job.folder.parent.mkdir(parents=True, exist_ok=True)
                with job.folder.with_suffix(".log").open("wb") as log:
                    running.append((job, subprocess.Popen(job.command, stdout=log, stderr=subprocess.STDOUT)))
            if time.monotonic() >= end:
                yield from stopped(running)
                return
            for job, process in [one for one in running if one[1].poll() is not None]:
                running.remove((job, process))
                yield job, process.returncode == 0
            time.sleep(0.2)
    finally:
        for _, process in running:
            process.kill()


def stopped(running: list[tuple[Job, "subprocess.Popen[bytes]"]]) -> Iterator[tuple[Job, bool]]:
    """Tells all runs to stop and store what they have."""
    for _, process in running:
        process.terminate()  # a job in the background may ignore SIGINT
    end = time.monotonic() + PATIENCE
    for job, process in running:
        try:
            process.wait(max(end - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
        yield job, False
    running.clear()


def row(job: Job, metric: str, *, ended: bool) -> dict[str, Any]:
    """The best validation of a run, its last one, and what it cost."""
    file = job.folder / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    judged = [line for line in lines if any(name.startswith("val/") for name in line)]
    found: dict[str, Any] = {"variant": job.variant, "seed": job.seed, "ended": ended, "epochs": len(lines)}
    if not judged:
        return found | {"problem": job.folder.with_suffix(".log").read_text().strip().splitlines()[-1:]}
    return found | {
        "metric": metric,
        "best": max(line[f"val/{metric}"] for line in judged),
        "last": judged[-1][f"val/{metric}"],
        "loss": lines[-1]["train/loss"],
        "seconds": round(sum(line["seconds"] for line in lines), 1),
    }


def shown(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The variants, the best first."""
    table = Table("variant", "seed", "epochs", "best validation", "last", "training loss", "seconds", "")
    for one in sorted(rows, key=lambda one: -one.get("best", -1.0)):
        state = "" if one["ended"] else "stopped early" if "best" in one else "failed"
        numbers = [f"{one[key]:.4f}" if key in one else "" for key in ("best", "last", "loss")]
        table.add_row(
            one["variant"], str(one["seed"]), str(one["epochs"]), *numbers, str(one.get("seconds", "")), state
        )
    return table


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--only", nargs="+", help="variants; by default all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--out", type=Path, help="keep the runs here")
    parser.add_argument("--json", type=Path)
    given = list(sys.argv[1:] if words is None else words)
    cut = given.index("--") if "--" in given else len(given)
    args = parser.parse_args(given[:cut])
    args.more = given[cut + 1 :]
    return args


def main() -> None:
    args = parse()
    plan, rows = yaml.safe_load(args.plan.read_text()), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as temporary:
        todo = jobs(plan, args, args.out or Path(temporary))
        for job, ended in run(todo, parallel=args.parallel, seconds=60 * args.minutes):
            rows.append(row(job, plan["metric"], ended=ended))
            print(json.dumps(rows[-1]), flush=True)
    Console(width=110).print(shown(rows))
    for name, gain, error in effects(rows, list(plan.get("factors", {}))):
        print(f"{name}: {gain:+.4f} (standard error {error:.4f})")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
