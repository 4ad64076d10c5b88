"""Time and peak memory of every attention mechanism by the number of patches N, with fitted exponents.

    python benchmarks/attention.py --json attention.json
    python benchmarks/attention.py --device cuda --train

One layer (width 64, two heads, float32, one image, a class token) on square grids of 64 to 16,384 patches, for every
registered mechanism with its default options, for deformable attention with one point for four patches, and for softmax
attention without the fused kernel. Mechanisms are interleaved at each size, round by round, so that noise affects all
of them. Times are medians; peak memory is the maximum of allocated memory without tokens and weights, including memory
inside kernels. `exponent` is the slope of the logarithms from N = 1,024 on: 2 is quadratic, 1 is linear. Sizes that
would take longer than the time budget are skipped. A mechanism with at least as many multiply-accumulates at N = 4,096
as softmax attention is marked as dense: it cannot be faster. All others must be faster than dense attention.
"""

import argparse
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler logs every start and stop

import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from vitrail.layers.attention import AttentionConfig, DeformableConfig, Site, SoftmaxConfig
from vitrail.profiling.dry_run import FusedKernels, Shapes

SEED = 0
SIDES = (8, 16, 32, 64, 128)  # N is the square
FROM = 1024  # below, the overhead of a call dominates
AT = 4096  # where all are compared with dense softmax attention


def contenders() -> dict[str, AttentionConfig]:
    """Every mechanism with its defaults, deformable attention with fewer points, and explicit softmax attention."""
    found: dict[str, Any] = {kind: cls() for kind, cls in AttentionConfig.kinds.items()}
    found["deformable, stride 2"] = DeformableConfig(stride=2)
    return {"softmax": found.pop("softmax"), "softmax, explicit": SoftmaxConfig(fused=False), **found}


def job(config: AttentionConfig, side: int, *, device: str, train: bool) -> Callable[[], None]:
    """One call of the layer on random tokens; in training, with the backward pass."""
    layer = config.build(Site(dim=64, num_heads=2, grid=(side, side), num_prefix=1)).to(device).train(train)
    tokens = torch.randn(1, 1 + side * side, 64, device=device, requires_grad=train)

    def run() -> None:
        with torch.inference_mode(not train):
            mixed = layer(tokens, (side, side))
        if train:
            layer.zero_grad(set_to_none=True)
            tokens.grad = None
            mixed.sum().backward()

    return run


def macs(config: AttentionConfig, side: int) -> int:
    """Multiply-accumulates of one call of the layer, counted without running it."""
    layer, found = config.build(Site(dim=64, num_heads=2, grid=(side, side), num_prefix=1)).eval(), list[int]()
    with torch.no_grad(), Shapes(found.append), FusedKernels(found.append):
        layer(torch.empty(1, 1 + side * side, 64), (side, side))
    return sum(found)


def dense_by_nature() -> set[str]:
    """The mechanisms with at least as many multiply-accumulates as softmax attention."""
    counted = {name: macs(config, math.isqrt(AT)) for name, config in contenders().items()}
    return {name for name, count in counted.items() if count >= counted["softmax"]}


def seconds(run: Callable[[], None], device: str, times: int = 1) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        run()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / times


def peak_bytes(run: Callable[[], None], device: str) -> int:
    """The peak memory of one call, without what was allocated before."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as watched:
        run()
    events = [event for event in watched.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def sweep(device: str, *, train: bool, rounds: int, budget: float) -> dict[str, dict[int, tuple[float, int]]]:
    """Seconds and bytes of each mechanism at each N."""
    results: dict[str, dict[int, tuple[float, int]]] = {name: {} for name in contenders()}
    for side in SIDES:
        runs = {}
        for name, config in contenders().items():
            # Four times the patches take at most sixteen times as long, in each round and in the warm-up.
            last = results[name].get((side // 2) ** 2, (0.0, 0))[0]
            if side == SIDES[0] or (results[name] and 0 < 16 * last * (rounds + 2) <= budget):
                runs[name] = job(config, side, device=device, train=train)
                seconds(runs[name], device)  # warm-up
        quick = {name: max(1, int(0.01 / seconds(run, device))) for name, run in runs.items()}
        taken: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(rounds):
            for name, run in runs.items():
                taken[name].append(seconds(run, device, quick[name]))
        for name, run in runs.items():
            results[name][side * side] = statistics.median(taken[name]), peak_bytes(run, device)
    return results


def exponent(points: dict[int, float]) -> float:
    """The slope of log y over log N from N = 1,024 on."""
    pairs = [(math.log(n), math.log(y)) for n, y in points.items() if n >= FROM and y > 0]
    if len(pairs) < 2:
        return math.nan
    x_mean, y_mean = (statistics.mean(column) for column in zip(*pairs, strict=True))
    return sum((x - x_mean) * (y - y_mean) for x, y in pairs) / sum((x - x_mean) ** 2 for x, _ in pairs)


def shown(results: dict[str, dict[int, tuple[float, int]]], title: str) -> Table:
    """Milliseconds and megabytes at each N, the exponents, and how many times faster than dense attention."""
    sizes = [side * side for side in SIDES]
    table = Table(title=title)
    for heading in ("mechanism", *(f"ms\nN={n:,}" for n in sizes), "expo-\nnent", *(f"MB\n{n:,}" for n in sizes[2:])):
        table.add_column(heading, justify="left" if heading == "mechanism" else "right")
    table.add_column("expo-\nnent", justify="right")
    table.add_column(f"times dense\nat {AT:,}", justify="right")
    table.add_column("by nature")
    dense, dense_ones = results["softmax"].get(AT, (math.nan, 0))[0], dense_by_nature()
    for name, points in results.items():
        times = [f"{1e3 * points[n][0]:,.2f}" if n in points else "-" for n in sizes]
        sizes_mb = [f"{points[n][1] / 1e6:,.1f}" if n in points else "-" for n in sizes[2:]]
        slopes = [f"{exponent({n: point[which] for n, point in points.items()}):.2f}" for which in (0, 1)]
        faster = f"{dense / points[AT][0]:.1f}" if AT in points else "-"
        nature = "dense" if name in dense_ones else ""
        table.add_row(name, *times, slopes[0], *sizes_mb, slopes[1], faster, nature)
    return table


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options.add_argument("--train", action="store_true", help="forward and backward, instead of forward alone")
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--budget", type=float, default=60.0, help="seconds for one mechanism at one size")
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    torch.manual_seed(SEED)
    if chosen.device == "cuda":
        hardware = torch.cuda.get_device_name()
    else:
        hardware = f"{platform.machine()}, {torch.get_num_threads()} threads"
    header = (
        f"{'forward and backward' if chosen.train else 'forward'}, width 64, 2 heads, float32, batch 1; {hardware}; "
        f"torch {torch.__version__}; seed {SEED}, {chosen.rounds} rounds"
    )
    results = sweep(chosen.device, train=chosen.train, rounds=chosen.rounds, budget=chosen.budget)
    Console(width=170).print(shown(results, header))
    if chosen.json:
        rows = [
            {"mechanism": name, "n": n, "seconds": point[0], "peak_bytes": point[1]}
            for name, points in results.items()
            for n, point in points.items()
        ]
        slopes = {
            name: {
                "time": exponent({n: point[0] for n, point in points.items()}),
                "memory": exponent({n: point[1] for n, point in points.items()}),
            }
            for name, points in results.items()
        }
        chosen.json.write_text(
            json.dumps(
                {"setting": header, "dense": sorted(dense_by_nature()), "exponents": slopes, "results": rows}, indent=2
            )
        )


if __name__ == "__main__":
    main()
