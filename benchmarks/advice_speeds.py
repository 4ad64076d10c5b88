"""Rows of measured.json on this machine: how long an answer takes, and on a GPU how long short trainings take.

`python benchmarks/advice.py speeds ROWS.json [--device cuda --machine h200]` writes them. A GPU needs the name that its
rows are to have.
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitrail.advice.choose import SMALLER
from vitrail.advice.networks import network
from vitrail.timing import Spread, interleaved, machine
from vitrail.training.first_try import SETTINGS
from vitrail.training.run import train

NETWORKS = (
    "packaged", "packaged-photos", "packaged-photos@64", "packaged-photos@96", "packaged-photos@256", "demo",
    "cifar10-small",
)  # fmt: skip
LINEAR = ("probe-photos", "probe-photos-96", "probe-photos-64", "probe-packaged")
IMAGES, CLASSES, SIDE = 640, 4, 160  # of the data that trainings are timed on
CPU = "epyc"  # the machine of the rows of a CPU
LONGEST = 30.0  # seconds after which no further training begins
WHOLE = "with start and report"
Rows = list[dict[str, Any]]


def speeds(out: Path, *, device: str, name: str | None) -> None:
    """Writes the rows, and prints them."""
    where = torch.device(device)
    if name is None and where.type != "cpu":
        raise SystemExit("name the machine of these rows, such as --machine h200")
    name = name or CPU
    rows = _answers(where, name)
    if where.type == "cuda":
        rows += _trainings(where, name)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("[\n  " + ",\n  ".join(json.dumps(row) for row in rows) + "\n]\n")
    print(out.read_text(), flush=True)


def _about(where: torch.device, name: str) -> dict[str, Any]:
    """What all rows of a machine say."""
    gpu = where.type == "cuda"
    words = f" --device {where.type} --machine {name}" if gpu else ""
    return {
        "machine": name, "device": where.type,
        "hardware": machine(where).rpartition("; ")[0] if gpu else "AMD EPYC, one thread, processor time",
        "versions": f"torch {torch.__version__}", "command": f"python benchmarks/advice.py speeds ROWS{words}",
    }  # fmt: skip


def _answers(where: torch.device, name: str) -> Rows:
    """Milliseconds of a pass of one image: by the processor time of one thread, on a GPU until its work has ended."""
    torch.set_num_threads(1)
    clock = time.perf_counter if where.type == "cuda" else time.process_time
    with torch.device("cpu"):
        passes = {one: network(one, device=where) for one in NETWORKS}
    rows: Rows = []
    for one, seconds in interleaved(passes, rounds=25, warm=5, clock=clock).items():
        middle, low, high = (round(value, 2) for value in Spread.of([1000 * taken for taken in seconds]))
        rows.append({"kind": "speed", "of": one, **_about(where, name), "ms": middle, "low": low, "high": high})
    return rows


def _trainings(where: torch.device, name: str) -> Rows:
    """Seconds of trainings of linear heads, with their reports; the first warms the GPU and is not counted."""
    began, rows = time.perf_counter(), Rows()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        data = noise(Path(scratch) / "data")
        for number, setting in enumerate((LINEAR[0], "default", *LINEAR)):
            if time.perf_counter() - began > LONGEST:
                break
            known = {} if setting == "default" else {**SETTINGS, **SMALLER}[setting]._asdict()
            start = {"start": known["start"], **known["changes"]} if known else {}
            taken = time.perf_counter()
            train(str(data), folder=Path(scratch) / str(number), device=where, silent=True, **start)
            seconds = round(time.perf_counter() - taken, 1)
            note = WHOLE if setting != "default" else f"{WHOLE}, and the choice between two image sizes"
            values = {"images": IMAGES, "pixels": SIDE, "seconds": seconds, "cores": 1, "note": note}
            rows.append({"kind": "training", "of": setting, "task": "classify", **_about(where, name), **values})
    return rows[1:]


def noise(folder: Path) -> Path:
    """Pictures of noise in some classes, each with a colour of its own."""
    draw = np.random.default_rng(0)
    for number in range(IMAGES):
        label = number % CLASSES
        pixels = draw.integers(0, 128, (SIDE, SIDE, 3), dtype=np.uint8)
        pixels[..., label % 3] += np.uint8(40 + 20 * label)
        into = folder / ("test" if number % 9 == 8 else "train") / f"class{label}"
        into.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(into / f"{number}.jpg", quality=90)
    return folder
