"""How the time and memory of a training step grow with image size, depth, width and batch.

    python benchmarks/growth.py                                  # ViT and Swin, sizes for a GPU, or small ones on a CPU
    python benchmarks/growth.py --axes image_size --families vit --rounds 9
    python benchmarks/growth.py --largest vit_base_patch16 swin_tiny_patch4_window7   # the largest batch of a GPU

Each line changes one thing. Steps of all sizes take turns, round by round. The exponent is the slope of a straight line
through the logarithms (least squares, one line for each round): the median of all rounds, and the middle half. The
last exponent is that of the last two sizes alone, where fixed costs matter least. Memory is the peak of a GPU; on a CPU
it is what a step saves for its backward pass, counted, and with one thread seconds are those of the process, which
other work on the same core does not lengthen.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import vitrail
from vitrail.hardware import precision as choose_precision
from vitrail.profiling.count import blank_images, count
from vitrail.profiling.training_step import make_step
from vitrail.timing import Spread, interleaved, machine, synchronised

Point = dict[str, Any]  # keywords of `vitrail.create`, and "batch"
BASE: dict[str, dict[str, tuple[str, Point]]] = {
    "cuda": {
        "vit": ("vit_small_patch16", {"batch": 32}),
        "swin": ("swin_tiny_patch4_window7", {"batch": 32}),
    },
    "cpu": {
        "vit": ("vit_tiny_patch16", {"batch": 2, "depth": 2, "dim": 96, "num_heads": 3, "image_size": 224}),
        "swin": (
            "swin_tiny_patch4_window7",
            {"batch": 1, "depths": (1, 1, 1, 1), "dims": (48, 96, 192, 384), "image_size": 224},
        ),
    },
}
WIDE = {"cuda": (192, 384, 768, 1536), "cpu": (48, 96, 192, 384)}
DEEP = {"cuda": (6, 12, 24, 48), "cpu": (1, 2, 4, 8)}
BATCHES = {"cuda": (8, 32, 128, 512), "cpu": (1, 2, 4, 8)}
SIDES = (224, 448, 672, 1024)
SWIN_SIDES = (224, 448, 672, 896)  # windows of 7 divide them


def points(family: str, axis: str, device: str) -> list[tuple[float, Point]]:
    """The sizes of an axis, and what is changed for each."""
    if axis == "image_size":
        return [(side, {"image_size": side}) for side in (SIDES if family == "vit" else SWIN_SIDES)]
    if axis == "batch":
        return [(batch, {"batch": batch}) for batch in BATCHES[device]]
    if axis == "depth":
        sizes = DEEP[device]
        if family == "vit":
            return [(depth, {"depth": depth}) for depth in sizes]
        return [(depth, {"depths": (2, 2, depth, 2) if device == "cuda" else (1, 1, depth, 1)}) for depth in sizes]
    if family == "vit":
        return [(dim, {"dim": dim, "num_heads": dim // 32}) for dim in WIDE[device]]
    widths = [size // 2 for size in WIDE[device]]
    stages = {width: [2**stage for stage in range(4)] for width in widths}
    return [
        (dim, {"dims": tuple(dim * times for times in more), "num_heads": tuple(dim // 16 * times for times in more)})
        for dim, more in stages.items()
    ]


def exponent(sizes: list[float], values: list[float]) -> float:
    """The slope of the logarithms, by least squares."""
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in values]
    middle = sum(x) / len(x)
    return sum((a - middle) * b for a, b in zip(x, y, strict=True)) / sum((a - middle) ** 2 for a in x)


def built(name: str, options: Point, device: torch.device) -> tuple[nn.Module, torch.Tensor]:
    keywords = {key: value for key, value in options.items() if key != "batch"}
    with device:  # draws the first weights of large models there
        model = vitrail.create(name, **keywords).to(device)
    images = torch.rand(options["batch"], model.config.channels, *model.config.image_size, device=device)
    return model, images


def memory(model: Any, images: torch.Tensor, step: Callable[[], object], device: torch.device) -> int:
    if device.type != "cuda":
        return count(model, blank_images(model, tuple(images.shape[2:]), len(images))).total[2]
    torch.cuda.reset_peak_memory_stats(device)
    step()
    return torch.cuda.max_memory_allocated(device)


def measure(family: str, axis: str, device: torch.device, chosen: argparse.Namespace) -> dict[str, Any]:
    """One line of the table: times and memory of all sizes of an axis."""
    name, base = BASE[device.type][family]
    kind = choose_precision(chosen.precision, device)[0]
    sizes, taken, peaks = [], dict[str, list[float]](), []
    runs: dict[str, Callable[[], object]] = {}
    for size, change in points(family, axis, device.type)[: chosen.points]:
        model, images = built(name, base | change, device)
        step = synchronised(make_step(model, images, mode="train", precision=kind), device)
        step()
        peaks.append(memory(model, images, step, device))
        sizes.append(size)
        if device.type == "cuda":  # one after the other: together they may not fit
            taken |= interleaved({str(size): step}, rounds=chosen.rounds)
            del model, images, step
            torch.cuda.empty_cache()
        else:
            runs[str(size)] = step
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    taken |= interleaved(runs, rounds=chosen.rounds, warm=1, clock=clock) if runs else {}
    rounds = [[taken[str(size)][turn] for size in sizes] for turn in range(chosen.rounds)]
    return {
        "family": family, "model": name, "base": base, "axis": axis, "sizes": sizes, "memory": peaks,
        "ms": [1000 * Spread.of(taken[str(size)]).median for size in sizes],
        "exponent": Spread.of([exponent(sizes, one) for one in rounds]),
        "last": Spread.of([exponent(sizes[-2:], one[-2:]) for one in rounds]),
        "memory_exponent": exponent(sizes, peaks), "memory_last": exponent(sizes[-2:], peaks[-2:]),
        "precision": kind,
    }  # fmt: skip


def largest(name: str, device: torch.device, chosen: argparse.Namespace, *, checkpointing: bool) -> dict[str, Any]:
    """The largest batch of a training step that fits into a GPU, by doubling and then halving, to one part in 16."""
    kind = choose_precision(chosen.precision, device)[0]
    model = vitrail.create(name).to(device)
    model.checkpointing = checkpointing

    def fits(batch: int) -> bool:
        try:
            images = torch.rand(batch, 3, *model.config.image_size, device=device)
            make_step(model, images, mode="train", precision=kind)()
            torch.cuda.synchronize(device)
        except torch.cuda.OutOfMemoryError:
            return False
        except RuntimeError as error:  # a kernel may not take so many numbers: then that is the limit
            print(f"{name}, batch {batch}: {error}", flush=True)
            return False
        finally:
            model.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
        return True

    low, high = 0, 16
    while high <= chosen.most and fits(high):
        low, high = high, 2 * high
    while high - low > max(high // 16, 1) and low < chosen.most:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    total = torch.cuda.get_device_properties(device).total_memory
    return {"model": name, "checkpointing": checkpointing, "batch": low, "memory": total, "precision": kind}


def show(row: dict[str, Any]) -> str:
    at = ", ".join(f"{size:g}: {ms:,.1f}" for size, ms in zip(row["sizes"], row["ms"], strict=True))
    return (
        f"| {row['family']} | {row['axis']} | {at} | {row['exponent']} | {row['last']} | "
        f"{row['memory_exponent']:.2f}, {row['memory_last']:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=["vit", "swin"], choices=["vit", "swin"])
    axes = ["image_size", "depth", "width", "batch"]
    parser.add_argument("--axes", nargs="+", default=axes, choices=axes)
    parser.add_argument("--points", type=int, default=4, help="of an axis")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--largest", nargs="*", default=[], metavar="MODEL", help="GPU alone")
    parser.add_argument("--most", type=int, default=1 << 14, help="images that --largest tries")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    device, began, found = torch.device(chosen.device), time.perf_counter(), []
    torch.manual_seed(0)
    print(
        "| model | changed | ms a step | exponent, time | of the last two | exponents, memory |\n"
        "|---|---|---|---|---|---|"
    )
    batches: list[dict[str, Any]] = []

    def keep() -> str:
        """Writes what is measured so far."""
        setting = f"{machine(device)}; seed 0; {chosen.rounds} rounds; {time.perf_counter() - began:.0f} s"
        if chosen.json:
            chosen.json.write_text(json.dumps({"setting": setting, "growth": found, "largest": batches}, indent=1))
        return setting

    for family in chosen.families:
        for axis in chosen.axes:
            found.append(measure(family, axis, device, chosen))
            print(show(found[-1]), flush=True)
            keep()
    for name in chosen.largest if device.type == "cuda" else ():
        for checkpointing in (False, True):
            batches.append(largest(name, device, chosen, checkpointing=checkpointing))
            print(batches[-1], flush=True)
            keep()
    print(keep())


if __name__ == "__main__":
    main()
