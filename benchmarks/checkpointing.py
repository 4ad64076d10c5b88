"""Gradient checkpointing: training memory becomes linear instead of quadratic in the number of tokens.

    python benchmarks/checkpointing.py --json checkpointing.json

For explicit and fused attention, with and without checkpointing: the bytes that the blocks save for backward (counted
by `vitrail.describe`), the peak memory of the process and the time of a real training step, by
the number of tokens N. `exponent` is the slope of the logarithms over all N: 2 is quadratic, 1 is linear.

The saved bytes become linear. With explicit attention the peak does not: blocks are recomputed one at a time, with
their N x N matrices, so checkpointing divides it by about the depth at best; fused attention has no such matrices.
"""

import argparse
import ctypes
import json
import math
import multiprocessing
import os
import platform
import statistics
import time
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import torch
from rich.console import Console
from rich.table import Table

import vitrail
from vitrail.models.backbone import Backbone
from vitrail.report import show

SEED = 0
SIDES = (16, 24, 32, 40)  # patches of 4 pixels: N is the square
CASES = [(fused, checkpointing) for fused in (False, True) for checkpointing in (False, True)]
MEASURES = ("activations", "peak", "seconds")


def build(side: int, *, fused: bool, checkpointing: bool) -> Backbone:
    """Four narrow blocks with four heads, so that most of the memory is that of the N x N matrices of attention."""
    torch.manual_seed(SEED)
    model = vitrail.create("vit_tiny_patch16", dim=32, depth=4, num_heads=4, num_classes=10, patch={"size": 4},
                           image_size=4 * side, attention={"fused": fused})  # fmt: skip
    model.checkpointing = checkpointing
    return model


def memory(field: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def step(model: Backbone, images: torch.Tensor) -> None:
    model.zero_grad(set_to_none=True)
    model(images).square().mean().backward()


def measure(job: tuple[int, bool, bool]) -> dict[str, float]:
    """One row, in a separate process, since the peak memory of a process never falls."""
    side, fused, checkpointing = job
    # M_MMAP_THRESHOLD: freed matrices are returned to the system at once, so that the peak has no cache of malloc.
    ctypes.CDLL(None).mallopt(-3, 2**16)
    warm_up = build(8, fused=fused, checkpointing=checkpointing)
    step(warm_up, torch.randn(1, 3, 32, 32))
    model, images = build(side, fused=fused, checkpointing=checkpointing), torch.randn(1, 3, 4 * side, 4 * side)
    before = memory("VmRSS")
    step(model, images)
    peak = memory("VmHWM") - before
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        step(model, images)
        seconds.append(time.perf_counter() - start)
    return {"N": side * side, "peak": peak, "seconds": statistics.median(seconds)}


def kept(side: int, *, fused: bool, checkpointing: bool) -> int:
    """Bytes that the blocks save for backward."""
    rows = vitrail.describe(build(side, fused=fused, checkpointing=checkpointing), depth=1)["Layers"].rows
    return sum(row["activations"] for row in rows if str(row["layer"]).startswith("blocks"))


def exponent(rows: list[dict[str, float]], measured: str) -> float:
    """The least-squares slope of log(measured) against log(N)."""
    x = [math.log(row["N"]) for row in rows]
    y = [math.log(row[measured]) for row in rows]
    return statistics.linear_regression(x, y).slope


def header() -> dict[str, str | int]:
    cpu = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return {
        "cpu": f"{cpu[0] if cpu else platform.processor()} x {os.cpu_count()}",
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "vitrail": vitrail.__version__,
        "seed": SEED,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the numbers here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    console = Console()
    console.print(
        " · ".join(f"{name} {value}" for name, value in header().items()), style="dim", highlight=False, soft_wrap=True
    )
    table = Table("attention", "checkpointing", "N", "kept in blocks", "peak growth", "step", box=None, pad_edge=False)
    for column in table.columns[2:]:
        column.justify = "right"
    results = []
    fork = multiprocessing.get_context("fork")  # torch is loaded once, and no thread of it runs yet
    for fused, checkpointing in CASES:
        with fork.Pool(1, maxtasksperchild=1) as pool:
            rows = pool.map(measure, [(side, fused, checkpointing) for side in SIDES], chunksize=1)
        for side, row in zip(SIDES, rows, strict=True):
            row["activations"] = kept(side, fused=fused, checkpointing=checkpointing)
        names = ("fused" if fused else "explicit", show(checkpointing))
        for row in rows:
            cells = (show(row["activations"], "bytes"), show(row["peak"], "bytes"), f"{1000 * row['seconds']:.1f} ms")
            table.add_row(*names, show(row["N"]), *cells)
        slopes = {name: exponent(rows, name) for name in MEASURES}
        table.add_row(*names, "exponent", *(f"{slope:.2f}" for slope in slopes.values()), style="bold")
        table.add_section()
        results.append({"fused": fused, "checkpointing": checkpointing, "rows": rows, "exponents": slopes})
    console.print(table)
    if options.json:
        options.json.write_text(json.dumps({"header": header(), "results": results}, indent=2))


if __name__ == "__main__":
    main()
