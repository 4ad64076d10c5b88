"""The start of a run: cold and warm, from the process to the first step, by the ledger of the run.

    python benchmarks/start.py --json start.json                           # 12,288 JPEGs of 500 x 375, ViT-S/16
    python benchmarks/start.py --images 64 --model vit_tiny_patch16 --batch-size 16 --epochs 1 --image-size 64

Each run is `vitrail train` in a process of its own, on a folder of files: first with an empty cache, then with the
packed images of the first. `--set` adds runs with other options, such as compile=true and compile=blocks. The table
has the seconds of every phase, and images/s and the share of waiting of each epoch.

Before each run, a process of its own imports torch and touches the device, which no run can do without: each run says
how many seconds more its first step took. The first of them also reads torch from the disk, if nothing did before.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from packing import write_photos

PHASE = re.compile(r"(?P<name>[a-z ]+) (?P<seconds>\d+\.\d) s")
STEP = re.compile(r"first step done after (\d+\.\d) s")
TOUCH = """
import os, sys, time
import torch
imported, child = time.perf_counter(), os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)  # a library that takes care of its threads has none during a fork
threads = len(os.listdir("/proc/self/task"))
torch.zeros(1, device=sys.argv[1])
print(time.monotonic(), time.perf_counter() - imported, threads)
"""


def touch(device: str) -> dict[str, float]:
    """Seconds of a process that imports torch and touches the device, those of the touch, and threads before it.

    With more than one thread, decoding processes cannot be copied from the run: the first image takes seconds more.
    """
    began = time.monotonic()  # that of all processes; without their end
    done = subprocess.run([sys.executable, "-c", TOUCH, device], capture_output=True, text=True, check=True)
    ended, touched, threads = map(float, done.stdout.split())
    seconds = ended - began
    print(
        f"import torch {seconds - touched:.1f} s and touch {device} {touched:.1f} s; {threads:.0f} threads at a fork",
        flush=True,
    )
    return {"seconds": seconds, "touched": touched, "threads": threads}


def run(folder: Path, photos: Path, name: str, chosen: argparse.Namespace, extra: list[str]) -> dict[str, Any]:
    """One training run: its phases and epochs."""
    out = folder / f"run-{name}"
    command = [sys.executable, "-m", "vitrail", "train", str(photos), "--model", chosen.model, "--out", str(out)]
    command += ["--epochs", str(chosen.epochs), "--batch-size", str(chosen.batch_size), "--val", "0.1"]
    command += ["--image-size", str(chosen.image_size), "--device", chosen.device, *extra]
    environment = os.environ | {"VITRAIL_CACHE": str(folder / "cache")}
    least = touch(chosen.device)
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        print(done.stderr[-3000:])
        raise SystemExit(f"{' '.join(command)} failed")
    ledger = next((line for line in done.stderr.splitlines() if line.startswith("time:")), "")
    phases = {
        found["name"].strip(): float(found["seconds"])
        for found in PHASE.finditer(ledger.partition("(")[2].partition(")")[0])
    }
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    epochs = [{key: line[key] for key in ("seconds", "images_per_second", "waiting")} for line in lines]
    said = [line for line in done.stderr.splitlines() if "packed" in line or "compiled" in line]
    print(f"{name:24s} {seconds:6.1f} s  {ledger}", flush=True)
    for number, epoch in enumerate(epochs, 1):
        speed, waiting = epoch["images_per_second"], epoch["waiting"]
        print(f"    epoch {number}: {epoch['seconds']:.1f} s, {speed:,.0f} images/s, waiting {waiting:.1%}", flush=True)
    more = float(found[1]) - least["seconds"] if (found := STEP.search(ledger)) else None
    if more is not None:
        print(f"    first step: {more:.1f} s more than importing torch and touching {chosen.device}", flush=True)
    for line in said:
        print(f"    {line}", flush=True)
    about = {"run": name, "options": extra, "seconds": seconds, "least": least, "first_step_more": more}
    return about | {"phases": phases, "epochs": epochs, "said": said}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=12_288)
    parser.add_argument("--model", default="vit_small_patch16")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="one more warm run each")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "photos").mkdir()
        write_photos(folder / "photos", chosen.images)
        rows = []
        for name, extra in [("cold", []), ("warm", []), *((key, ["--set", key]) for key in chosen.set)]:
            rows.append(run(folder, folder / "photos", name, chosen, extra))
            if chosen.json:
                chosen.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
