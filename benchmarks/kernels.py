"""Training steps with the kernels for NVIDIA GPUs, and without them, and of timm; kernel_checks.py has kernels alone.

    python benchmarks/kernels.py --json kernels.json      # some minutes on one H200
    python benchmarks/kernels.py --models "ViT-B/16 224" --rounds 5

A step is forward, backward and fused AdamW, float32 weights under bfloat16 autocast, compiled. Contenders take turns,
round by round. First each contender is compiled by a process of its own, several at a time, which fills the cache of
the compiler; then one model after the other is measured. timm takes part where it can be imported. JSON is written
after each model.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vitrail
from vitrail.layers import joined_heads, kernels
from vitrail.layers.fp8 import use_fp8

STEPS: dict[str, dict[str, Any]] = {
    "ViT-S/16 224": {"model": "vit_small_patch16", "timm": "vit_small_patch16_224", "batch": 512, "size": 224},
    "ViT-B/16 224": {"model": "vit_base_patch16", "timm": "vit_base_patch16_224", "batch": 256, "size": 224},
    "Swin-T 224": {
        "model": "swin_tiny_patch4_window7", "timm": "swin_tiny_patch4_window7_224", "batch": 256, "size": 224,
        "inference": True, "norms": False,
    },
    "32 px small": {"model": "vit32_small", "batch": 1024, "size": 32, "recorded": True},
    "32 px small, dropout": {"model": "vit32_small", "batch": 1024, "size": 32, "recorded": True, "dropout": True,
                             "norms": False},
}  # fmt: skip
PARTS = ("bias_gelu", "window_attention")
FP8 = "fp8"  # the linear layers of blocks
NORM, STREAM = "add_norm", "16-bit stream"  # residual connections and norms; with 16 bits between them
JOIN = "join_heads"  # gradients of queries, keys and values
RECORDED = "recorded"  # the step is a CUDA graph
AT_ONCE = 6  # processes that compile: each holds one model and its step, 25 GB at most
Run = Callable[[], object]
Report = Callable[[list[dict[str, Any]]], None]
DEVICE = "cuda"
SUITS, WIDTHS, NORMED = kernels.suits, kernels.WIDTHS, kernels.NORMED


def contenders(name: str) -> dict[str, tuple[nn.Module, tuple[str, ...]]]:
    """Models of the same weights, and the kernels that each may use; timm's where it is there."""
    step = STEPS[name]
    plainly = step["size"] == 32 and not step.get("dropout")
    options = {"dropout": 0.0, "attention": {"dropout": 0.0}} if plainly else {}
    plain = vitrail.create(step["model"], **options)
    found = {"plain": (plain, ())}
    for way in ways(name):
        model = vitrail.create(step["model"], **options)
        model.load_state_dict(plain.state_dict())
        found[" + ".join(way)] = (use_fp8(model) if FP8 in way else model, way)
    with suppress(ImportError, RuntimeError):  # torchvision, which it needs, may not fit torch
        import timm

        if step["size"] == 32:
            size = {"img_size": 32, "patch_size": 4, "embed_dim": 192, "depth": 12, "num_heads": 3, "num_classes": 10}
            found["timm"] = (timm.models.VisionTransformer(**size), ())
        else:
            found["timm"] = (timm.create_model(step["timm"]), ())
    return found


def ways(name: str) -> list[tuple[str, ...]]:
    """The kernels, and what else, that the contenders of a model use."""
    step = STEPS[name]
    short = step["size"] == 32 or "Swin" in name
    found = [PARTS[:1], PARTS] if short else [PARTS[:1]]
    if step.get("norms", True):
        found += [(*found[-1], NORM), (*found[-1], NORM, STREAM)]
    if not short:
        found += [(*found[-1], JOIN), (*found[-1], JOIN, FP8)]
    return found if step.get("recorded") else [*found, *((*way, RECORDED) for way in found[-2:])]


def compiled_alone(name: str) -> list[str]:
    """The contenders of a model whose compiled code no other has."""
    return ["plain", "timm", *(" + ".join(way) for way in ways(name) if RECORDED not in way)]


def refuse(tensor: Tensor) -> bool:
    return False


def only(parts: tuple[str, ...]) -> None:
    """Layers use these kernels alone, in what is traced and in what was traced so: compiled code looks at it."""
    kernels.suits = SUITS if parts else refuse
    kernels.WIDTHS = WIDTHS if "window_attention" in parts else ()
    kernels.DROPOUT = bool(parts)
    kernels.NORMED = NORMED if NORM in parts else 0
    kernels.STREAM = STREAM in parts
    joined_heads.JOINED = JOIN in parts


def step_of(model: nn.Module, images: Tensor, labels: Tensor, *, recorded: bool) -> Run:
    """A training step; the first call compiles."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True, capturable=recorded)
    compiled = torch.compile(model)

    def run() -> Tensor:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(compiled(images), labels)
        loss.backward()
        optimiser.step()
        return loss.detach()

    if not recorded:
        return run
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = run()

    def replay(_keep: object = run) -> Tensor:  # the optimiser's state has to live as long as the recording
        graph.replay()
        return loss

    return replay


def seconds(run: Run, times: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / times


def profiled(run: Run) -> dict[str, float]:
    """Milliseconds of a step in each kernel, the longest first."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    events = sorted(seen.key_averages(), key=lambda event: -event.self_device_time_total)
    return {f"{e.key[:90]} x{e.count}": e.self_device_time_total / 1000 for e in events if e.self_device_time_total}


def inference_of(model: nn.Module, images: Tensor) -> Run:
    """The forward pass alone; the first call compiles."""
    compiled = torch.compile(model)

    def run() -> Tensor:
        model.eval()
        with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16):
            return compiled(images)

    return run


class Contender:
    """A model with the kernels that it may use, compiled: its steps and, where asked for, its forward passes."""

    def __init__(self, name: str, model: nn.Module, parts: tuple[str, ...]) -> None:
        self.parts, self.model, step = parts, model.to(DEVICE), STEPS[name]
        torch.manual_seed(0)
        images = torch.randn(step["batch"], 3, step["size"], step["size"], device=DEVICE)
        labels = torch.randint(10, (step["batch"],), device=DEVICE)
        began = time.perf_counter()
        torch.cuda.reset_peak_memory_stats()
        only(parts)
        recorded = step.get("recorded", False) or RECORDED in parts
        self.runs = {"train": step_of(model.train(), images, labels, recorded=recorded)}
        losses = [float(self.runs["train"]()) for _ in range(4)]
        peak = torch.cuda.max_memory_allocated() / 1e9
        if step.get("inference"):
            self.runs["infer"] = inference_of(model, images)
            self.runs["infer"]()
        torch.cuda.empty_cache()
        self.row = {"compile_s": time.perf_counter() - began, "peak_GB": peak, "losses": losses}

    def seconds(self, what: str, times: int) -> float:
        only(self.parts)
        self.model.train(what == "train")
        return seconds(self.runs[what], times)

    def profiled(self, what: str) -> dict[str, float]:
        self.seconds(what, 1)
        return profiled(self.runs[what])


def child(name: str, folder: Path, rounds: int, warm: str | None) -> None:
    """Compiles the contenders of one model and measures them; `warm` compiles one alone, for the cache."""
    models = contenders(name)
    if warm:
        if warm in models:
            Contender(name, *models[warm])
        return
    built = dict[str, Contender]()
    for contender, model in models.items():
        try:
            built[contender] = Contender(name, *model)
        except Exception:  # of a compiler or a driver, of any kind: all others are still measured
            traceback.print_exc()
            print(f"FAILED {name}, {contender}", flush=True)
    print(f"{name}: ready, " + ", ".join(f"{one} {built[one].row['compile_s']:.0f} s" for one in built), flush=True)
    rows = []
    for what in built["plain"].runs:
        times = max(5, math.ceil(0.4 / built["plain"].seconds(what, 3)))
        taken: dict[str, list[float]] = {contender: [] for contender in built}
        for contender in built.values():
            contender.seconds(what, times)
        for turn in range(rounds):
            for key in list(built)[turn % len(built) :] + list(built)[: turn % len(built)]:
                taken[key].append(built[key].seconds(what, times))
        for key, values in taken.items():
            ratios = [base / one for base, one in zip(taken["plain"], values, strict=True)]
            rows.append({"model": name, "what": what, "contender": key, "ms": 1000 * statistics.median(values),
                         "images_per_s": STEPS[name]["batch"] / statistics.median(values),
                         "times_plain": statistics.median(ratios), "range": (min(ratios), max(ratios)),
                         "kernels": built[key].profiled(what), **built[key].row})  # fmt: skip
    (folder / f"{name.replace('/', '_')}.json").write_text(json.dumps(rows))


def steps(rounds: int, chosen: list[str], report: Report) -> None:
    """All models' steps; a model that is measured is reported and written at once."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        command = [sys.executable, __file__, "--folder", path, "--rounds", str(rounds), "--child"]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            todo = [[*command, name, "--warm", contender] for name in chosen for contender in compiled_alone(name)]
            list(pool.map(lambda words: subprocess.run(words, stderr=subprocess.DEVNULL, check=False), todo))
        for name in chosen:
            subprocess.run([*command, name], check=False)
            result = folder / f"{name.replace('/', '_')}.json"
            if result.exists():
                report(json.loads(result.read_text()))


def show(found: list[dict[str, Any]]) -> None:
    """The table of steps."""
    for row in found:
        low, high = row["range"]
        print(
            f"{row['model']:14s} {row['what']:5s} {row['contender']:52s} {row['images_per_s']:9,.0f} images/s "
            f"{row['ms']:8.2f} ms {row['times_plain']:6.3f} ({low:.3f} to {high:.3f}) {row['peak_GB']:5.1f} GB "
            f"losses {', '.join(f'{loss:.4f}' for loss in row['losses'])}",
            flush=True,
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--models", nargs="*", default=list(STEPS), choices=list(STEPS))
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--json", type=Path)
    options.add_argument("--child", help=argparse.SUPPRESS)
    options.add_argument("--warm", help=argparse.SUPPRESS)
    options.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.child:
        child(chosen.child, chosen.folder, chosen.rounds, chosen.warm)
        return
    setting = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, seed 0, {os.cpu_count()} cores"
    found: list[dict[str, Any]] = []

    def report(rows: list[dict[str, Any]]) -> None:
        show(rows)
        found.extend(rows)
        if chosen.json:
            chosen.json.write_text(json.dumps({"setting": setting, "steps": found}, indent=1))

    steps(chosen.rounds, chosen.models, report)
    print(setting)


if __name__ == "__main__":
    main()
