"""The start of a run: cold and warm, from the process to the first step, by the ledger of the run.

    python benchmarks/start.py --json start.json                           # 12,288 JPEGs of 500 x 375, ViT-S/16
    python benchmarks/start.py --images 64 --model vit_tiny_patch16 --batch-size 16 --epochs 1 --image-size 64

Each run is `vitrail train` in a process of its own, on a folder of files: first with an empty cache, then with the
packed images of the first. `--set` adds runs with other options, such as compile=true and compile=blocks. The table
has the seconds of every phase, and images/s and the share of waiting of each epoch.
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


def run(folder: Path, photos: Path, name: str, chosen: argparse.Namespace, extra: list[str]) -> dict[str, Any]:
    """One training run: its phases and epochs."""
    out = folder / f"run-{name}"
    command = [sys.executable, "-m", "vitrail", "train", str(photos), "--model", chosen.model, "--out", str(out)]
    command += ["--epochs", str(chosen.epochs), "--batch-size", str(chosen.batch_size), "--val", "0.1"]
    command += ["--image-size", str(chosen.image_size), "--device", chosen.device, *extra]
    environment = os.environ | {"VITRAIL_CACHE": str(folder / "cache")}
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        print(done.stderr[-3000:])
        raise SystemExit(f"{' '.join(command)} failed")
    ledger = next((line for line in done.stderr.splitlines() if line.startswith("time:")), "")
    phases = {found["name"].strip(): float(found["seconds"]) for found in PHASE.finditer(ledger.partition("(")[2])}
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    epochs = [{key: line[key] for key in ("seconds", "images_per_second", "waiting")} for line in lines]
    said = [line for line in done.stderr.splitlines() if "packed" in line or "compiled" in line]
    print(f"{name:24s} {seconds:6.1f} s  {ledger}", flush=True)
    for number, epoch in enumerate(epochs, 1):
        speed, waiting = epoch["images_per_second"], epoch["waiting"]
        print(f"    epoch {number}: {epoch['seconds']:.1f} s, {speed:,.0f} images/s, waiting {waiting:.1%}", flush=True)
    return {"run": name, "options": extra, "seconds": seconds, "phases": phases, "epochs": epochs, "said": said}


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
