"""The overhead of capturing attention in a ViT-B, compared with the plain forward pass.

    python benchmarks/capture.py --json capture.json              # a minute on two cores
    python benchmarks/capture.py --device cuda --dtype bfloat16 --batch 64

Contenders are interleaved, round by round, so that noise affects all of them; a ratio is the time of a contender
divided by that of the plain pass of the same round: the median and the interquartile range. Every pass enters the
capture and reads the result. No round starts after --seconds: the header gives the number of rounds. The last contender
is the alternative to capture: a model with explicit attention in all layers.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import vitrail
from vitrail.explain import capture

SEED = 0
FEWEST = 3  # rounds, however slow
ASKED: dict[str, dict[str, Any]] = {
    "one layer, class row": {"layers": [-1], "rows": "class"},
    "all layers, class row": {"rows": "class"},
    "one layer, all rows": {"layers": [-1]},
}

Run = Callable[[], object]


def plain(model: nn.Module, images: Tensor) -> Run:
    def run() -> object:
        with torch.no_grad():
            return model(images)

    return run


def looking(model: nn.Module, images: Tensor, asked: dict[str, Any]) -> Run:
    def run() -> object:
        with torch.no_grad(), capture(model, **asked) as seen:
            logits = model(images)
        return logits, [seen.attention[index] for index in seen.attention]

    return run


def contenders(images: Tensor, *, name: str, compiled: bool) -> dict[str, Run]:
    """The plain pass, each kind of capture, and a model with explicit attention."""
    torch.manual_seed(SEED)
    models = [vitrail.create(name, image_size=images.shape[-1], attention={"fused": fused}) for fused in (True, False)]
    models = [model.to(images).eval() for model in models]
    fused, explicit = (torch.compile(model) for model in models) if compiled else models
    runs = {"nothing": plain(fused, images)}
    runs |= {what: looking(fused, images, asked) for what, asked in ASKED.items()}
    return runs | {"explicit attention": plain(explicit, images)}


def seconds(run: Run, times: int, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        run()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / times


def measure(runs: dict[str, Run], *, rounds: int, times: int, device: str, limit: float) -> dict[str, list[float]]:
    """Seconds of each contender by round; each round starts with another one, and none starts after the limit."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        seconds(run, 1, device)  # warm-up, and compilation if requested
    start = time.perf_counter()
    for turn in range(rounds):
        if turn >= FEWEST and time.perf_counter() - start > limit:
            break
        first = turn % len(runs)
        for name in [*list(runs)[first:], *list(runs)[:first]]:
            taken[name].append(seconds(runs[name], times, device))
    return taken


def ratios(taken: dict[str, list[float]]) -> dict[str, tuple[float, float, float]]:
    """The time of each contender relative to the plain pass of the same round: lower quartile, median, upper."""
    base = next(iter(taken.values()))
    found = {}
    for name, times in taken.items():
        low, middle, high = statistics.quantiles(
            [one / other for one, other in zip(times, base, strict=True)], n=4, method="inclusive"
        )
        found[name] = (low, middle, high)
    return found


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="vit_base_patch16")
    options.add_argument("--image-size", type=int, default=224)
    options.add_argument("--batch", type=int, default=2)
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    options.add_argument("--compile", action="store_true")
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--times", type=int, default=1, help="passes of one contender in a round")
    options.add_argument("--seconds", type=float, default=40.0, help="no round begins later")
    options.add_argument("--json", type=Path)
    return options.parse_args(arguments)


def main() -> None:
    chosen = parse()
    images = torch.randn(chosen.batch, 3, chosen.image_size, chosen.image_size)
    images = images.to(chosen.device, getattr(torch, chosen.dtype))
    hardware = (
        torch.cuda.get_device_name()
        if chosen.device == "cuda"
        else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    runs = contenders(images, name=chosen.model, compiled=chosen.compile)
    taken = measure(runs, rounds=chosen.rounds, times=chosen.times, device=chosen.device, limit=chosen.seconds)
    header = (
        f"{chosen.model}, {chosen.image_size} px, batch {chosen.batch}, {chosen.dtype}, "
        f"{'compiled' if chosen.compile else 'eager'}; {hardware}; torch {torch.__version__}; seed {SEED}, "
        f"{len(taken['nothing'])} rounds of {chosen.times}"
    )
    table = Table("looked at", "ms a pass", "times the plain pass", "middle half", title=header)
    results = []
    for name, (low, middle, high) in ratios(taken).items():
        milliseconds = 1000 * statistics.median(taken[name])
        table.add_row(name, f"{milliseconds:,.2f}", f"{middle:.3f}", f"{low:.3f} to {high:.3f}")
        results.append({"looked at": name, "ms": milliseconds, "ratio": middle, "low": low, "high": high})
    Console(width=120).print(table)
    if chosen.json:
        chosen.json.write_text(json.dumps({"setting": header, "results": results}, indent=2))


if __name__ == "__main__":
    main()
