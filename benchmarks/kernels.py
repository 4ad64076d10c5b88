"""The kernels for NVIDIA GPUs: held against plain ops, timed against the memory's speed, and as a part of a step.

    python benchmarks/kernels.py --json kernels.json      # some minutes on one H200
    python benchmarks/kernels.py --only check
    python benchmarks/kernels.py --only check micro tune --kernels sample_levels

A step is forward, backward and fused AdamW, float32 weights under bfloat16 autocast, compiled. Contenders take turns,
round by round. Each model is compiled in a process of its own while the others are, too; no process measures before
all have compiled. timm takes part where it can be imported.
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
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vitrail
from vitrail.layers import kernels
from vitrail.layers.attention import Site, WindowAttention, WindowConfig
from vitrail.layers.attention.deformable_multiscale import sampled
from vitrail.layers.fp8 import use_fp8
from vitrail.layers.patch import Grid

SITES = {  # grid, window, shifted, heads, width of a head
    "Swin-T stage 1, shifted": ((56, 56), (7, 7), 1, 3, 32),
    "Swin-T stage 1": ((56, 56), (7, 7), 0, 3, 32),
    "Swin-T stage 3, shifted": ((14, 14), (7, 7), 1, 12, 32),
    "Swin-T stage 4": ((7, 7), (7, 7), 0, 24, 32),
    "odd": ((6, 9), (3, 3), 1, 2, 16),
    "uneven": ((8, 12), (4, 6), 1, 1, 64),
    "50 tokens": ((1, 50), (1, 50), 0, 12, 64),
    "65 tokens": ((1, 65), (1, 65), 0, 3, 64),
    "128 tokens": ((1, 128), (1, 128), 0, 12, 64),
}
FINE = [(60, 80), (30, 40), (15, 20), (8, 10)]  # levels of 480 x 640 pixels
LEVELS = {  # grids, queries, heads, width of a head, points
    "Deformable DETR encoder": (FINE, 6380, 8, 32, 4),
    "Deformable DETR decoder": (FINE, 300, 8, 32, 4),
    "RT-DETR decoder": (FINE[:3], 282, 8, 32, 4),
    "one odd level": ([(7, 5)], 37, 3, 8, 3),
    "heads of 64": ([(9, 16), (1, 3)], 65, 2, 64, 1),
}
TUNINGS = ((512, 2), (512, 4), (1024, 4), (2048, 4), (2048, 8), (4096, 8))  # elements of a tile, warps
STEPS: dict[str, dict[str, Any]] = {
    "ViT-S/16 224": {"model": "vit_small_patch16", "timm": "vit_small_patch16_224", "batch": 512, "size": 224},
    "ViT-B/16 224": {"model": "vit_base_patch16", "timm": "vit_base_patch16_224", "batch": 256, "size": 224},
    "Swin-T 224": {
        "model": "swin_tiny_patch4_window7", "timm": "swin_tiny_patch4_window7_224", "batch": 256, "size": 224,
        "inference": True, "warm": ("bias_gelu", "bias_gelu + window_attention", "timm"),
    },
    "32 px small": {"model": "vit32_small", "batch": 1024, "size": 32, "recorded": True},
    "32 px small, dropout": {"model": "vit32_small", "batch": 1024, "size": 32, "recorded": True, "dropout": True},
}  # fmt: skip
PARTS = ("bias_gelu", "window_attention")
FP8 = "fp8"  # the linear layers of blocks
KERNELS = (*PARTS, "sample_levels")
Run = Callable[[], object]
DEVICE = "cuda"
SUITS, WIDTHS = kernels.suits, kernels.WIDTHS


def distance(found: Tensor, expected: Tensor) -> float:
    """||found - expected|| / ||expected||."""
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


def window_layer(site: str) -> WindowAttention:
    """A layer with a bias that matters."""
    grid, size, block, heads, width = SITES[site]
    layer = WindowConfig(size=size).build(Site(heads * width, heads, grid, block=block)).to(DEVICE)
    nn.init.normal_(layer.relative.table)
    return layer


def plainly(layer: WindowAttention, grid: Grid, qkv: Tensor) -> Tensor:
    """The layer's own way from queries, keys and values side by side to what the heads mixed."""
    windows = layer.windows(grid)
    q, k, v = (layer.split(part) for part in windows.cut(qkv).chunk(3, dim=-1))
    if grid[0] == 1:
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    return windows.joined(layer._within(q, k, v, windows, 0))


def by_kernel(layer: WindowAttention, grid: Grid, qkv: Tensor) -> Tensor:
    windows = layer.windows(grid)
    bias = None if grid[0] == 1 else layer.relative(windows.size)
    options = {"grid": windows.grid, "size": windows.size, "shift": windows.shift, "scale": layer.scale}
    return kernels.window_attention(qkv, bias, num_heads=layer.num_heads, **options)


def level_inputs(site: str, batch: int, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    """Values B S A d, points around the queries' own, and shares that sum to 1; and a gradient of the output."""
    grids, queries, heads, width, points = LEVELS[site]
    tokens = sum(rows * columns for rows, columns in grids)
    values = torch.randn(batch, tokens, heads, width, device=DEVICE).to(dtype)
    # Queries in the order of the first map, row by row, as in an encoder; a point is some pixels of its level away.
    rows, columns = grids[0]
    index = torch.arange(queries, device=DEVICE) * (rows * columns) // queries
    at = torch.stack([(index % columns + 0.5) / columns, (index // columns + 0.5) / rows], dim=-1)  # Q 2
    sizes = torch.tensor([(width, height) for height, width in grids], device=DEVICE)
    away = 2 * torch.randn(batch, queries, heads, len(grids), points, 2, device=DEVICE) / sizes[:, None]
    shares = torch.randn(batch, queries, heads, len(grids) * points, device=DEVICE).softmax(dim=-1)
    grad = torch.randn(batch, queries, heads, width, device=DEVICE).to(dtype)
    return [values, at[:, None, None, None] + away, shares.unflatten(3, (len(grids), points))], grad


def plain_levels(grids: list[Grid], values: Tensor, points: Tensor, shares: Tensor) -> Tensor:
    return sampled(values.transpose(1, 2), points, shares.to(values.dtype), grids)


def kernel_levels(grids: list[Grid], values: Tensor, points: Tensor, shares: Tensor) -> Tensor:
    return kernels.sample_levels(values, points, shares, grids)


def gradients(function: Callable[..., Tensor], inputs: list[Tensor], grad: Tensor) -> list[Tensor]:
    """The result and the gradient of each input."""
    for one in inputs:
        one.requires_grad_()
    result = function(inputs[0]) if isinstance(inputs[-1], nn.Parameter) else function(*inputs)
    found = torch.autograd.grad(result, inputs, grad.to(result.dtype), allow_unused=True)
    return [result.detach(), *(one for one in found if one is not None)]


def check(chosen: Sequence[str]) -> list[dict[str, Any]]:
    """Each kernel, forward and backward, against plain ops in float64."""
    rows = []
    limits = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}
    checks = {"bias_gelu": check_gelu, "window_attention": check_windows, "sample_levels": check_levels}
    for dtype, limit in limits.items():
        for name in chosen:
            rows += checks[name](dtype, limit)
    return rows


def check_gelu(dtype: torch.dtype, limit: float) -> list[dict[str, Any]]:
    rows = []
    for shape in ((64, 197, 3072), (3, 7, 40), (2, 5, 129), (1, 1, 1536), (1000, 384)):
        x, bias, grad = torch.randn(shape).mul(2).to(dtype), torch.randn(shape[-1]), torch.randn(shape).to(dtype)
        x, bias, grad = x.to(DEVICE), bias.to(DEVICE), grad.to(DEVICE)
        expected = gradients(lambda x, b: F.gelu(x + b), [x.double(), bias.double()], grad)
        found = gradients(kernels.bias_gelu, [x, bias], grad)
        rows.append(_judged(f"bias_gelu {tuple(shape)}", dtype, found, expected, limit))
    return rows


def check_windows(dtype: torch.dtype, limit: float) -> list[dict[str, Any]]:
    rows = []
    for site, (grid, _, _, heads, width) in SITES.items():
        layer = window_layer(site)
        qkv = torch.randn(5, grid[0] * grid[1], 3 * heads * width, device=DEVICE).to(dtype)
        grad = torch.randn(5, grid[0] * grid[1], heads * width, device=DEVICE).to(dtype)
        kernel = partial(by_kernel, layer, grid)
        found = gradients(kernel, [qkv, layer.relative.table], grad)
        again = gradients(kernel, [qkv, layer.relative.table], grad)
        if not all(torch.equal(one, other) for one, other in zip(found, again, strict=True)):
            print(f"MOVES {site} {dtype}")  # the index of the table adds its gradient up in any order
        layer = layer.double()
        expected = gradients(partial(plainly, layer, grid), [qkv.double(), layer.relative.table], grad)
        rows.append(_judged(f"window_attention {site}", dtype, found, expected, limit))
    return rows


def check_levels(dtype: torch.dtype, limit: float) -> list[dict[str, Any]]:
    rows = []
    for site, (grids, *_) in LEVELS.items():
        inputs, grad = level_inputs(site, 2, dtype)
        found = gradients(partial(kernel_levels, grids), [one.clone() for one in inputs], grad)
        expected = gradients(partial(plain_levels, grids), [one.double() for one in inputs], grad)
        rows.append(_judged(f"sample_levels {site}", dtype, found, expected, limit))
    return rows


def _judged(name: str, dtype: torch.dtype, found: Any, expected: Any, limit: float) -> dict[str, Any]:
    off = [distance(one, other) for one, other in zip(found, expected, strict=True)]
    right = all(value < limit for value in off)
    print(f"{'ok   ' if right else 'WRONG'} {name} {dtype}: " + ", ".join(f"{value:.1e}" for value in off), flush=True)
    return {"check": name, "dtype": str(dtype), "off": off, "right": right}


def milliseconds(run: Run) -> float:
    import triton.testing

    return triton.testing.do_bench(run, warmup=20, rep=60, return_mode="median")


def timed(name: str, run: Run, size: int) -> dict[str, Any]:
    """A row of the table: the time, and the fewest bytes that had to move over it."""
    taken = milliseconds(run)
    print(f"{name:58s} {taken:7.3f} ms {size / taken / 1e9:6.2f} TB/s", flush=True)
    return {"name": name, "ms": taken, "TB/s": size / taken / 1e9}


def both_ways(name: str, function: Callable[..., Tensor], inputs: list[Tensor], grad: Tensor) -> list[dict[str, Any]]:
    """The rows of the forward and of the backward pass."""
    read = sum(one.numel() * one.element_size() for one in inputs)
    written = grad.numel() * grad.element_size()
    leaves = [one.detach().requires_grad_() for one in inputs]
    result = function(*leaves)

    def forward() -> object:
        with torch.no_grad():
            return function(*leaves)

    def backward() -> object:
        return torch.autograd.grad(result, leaves, grad, retain_graph=True)

    return [
        timed(f"{name}, forward", forward, read + written),
        timed(f"{name}, backward", backward, 2 * read + written),
    ]


def compiled(way: Callable[..., Tensor], layer: WindowAttention, grid: Grid) -> Callable[[Tensor], Tensor]:
    def run(qkv: Tensor) -> Tensor:
        return way(layer, grid, qkv)

    return torch.compile(run, dynamic=False)


def gelu(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias.to(x.dtype))


def micro(chosen: Sequence[str]) -> list[dict[str, Any]]:
    """One layer's worth of each kernel and of what it replaces; bytes are the fewest that have to move."""
    source = torch.empty(1 << 30, dtype=torch.int8, device=DEVICE).random_()
    target = torch.empty_like(source)
    rows = [timed("copy", lambda: target.copy_(source), 2 * len(source))]
    ways = {"bias_gelu": micro_gelu, "window_attention": micro_windows, "sample_levels": micro_levels}
    for name in chosen:
        rows += ways[name]()
    return rows


def micro_gelu() -> list[dict[str, Any]]:
    rows = []
    for tokens, width in ((256 * 197, 3072), (256 * 3136, 384), (1024 * 65, 768)):
        x = torch.randn(tokens, width, device=DEVICE, dtype=torch.bfloat16)
        inputs, grad = [x, torch.randn(width, device=DEVICE)], torch.randn_like(x)
        for name, way in (("plain", torch.compile(gelu, dynamic=False)), ("kernel", kernels.bias_gelu)):
            rows += both_ways(f"gelu {tokens} x {width} {name}", way, inputs, grad)
    return rows


def micro_windows() -> list[dict[str, Any]]:
    rows = []
    torch._dynamo.config.recompile_limit = 64  # one function for all sites
    for site, (grid, _, _, heads, width) in SITES.items():
        layer, batch = window_layer(site), 4096 if grid[0] == 1 else 256
        qkv = torch.randn(batch, grid[0] * grid[1], 3 * heads * width, device=DEVICE, dtype=torch.bfloat16)
        grad = torch.randn(batch, grid[0] * grid[1], heads * width, device=DEVICE, dtype=torch.bfloat16)
        for name, way in (("plain", plainly), ("kernel", by_kernel)):
            rows += both_ways(f"{site}, {name}", compiled(way, layer, grid), [qkv], grad)
    return rows


def micro_levels() -> list[dict[str, Any]]:
    """Not compiled, as training runs it by default."""
    rows = []
    for site in list(LEVELS)[:3]:
        inputs, grad = level_inputs(site, 16, torch.bfloat16)
        for name, way in (("plain", plain_levels), ("kernel", kernel_levels)):
            rows += both_ways(f"{site}, {name}", partial(way, LEVELS[site][0]), inputs, grad)
    return rows


def tune() -> list[dict[str, Any]]:
    """Ways to launch the kernel of sampled levels, in the encoder of Deformable DETR."""
    from vitrail.layers import triton_deformable as module

    rows, site = [], "Deformable DETR encoder"
    inputs, grad = level_inputs(site, 16, torch.bfloat16)
    for elements, warps in TUNINGS:
        module.FORWARD = module.BACKWARD = module.Tuning(elements, warps)
        rows += both_ways(f"tile of {elements}, {warps} warps", partial(kernel_levels, LEVELS[site][0]), inputs, grad)
    return rows


def contenders(name: str) -> dict[str, tuple[nn.Module, tuple[str, ...]]]:
    """Models of the same weights, and the kernels that each may use; timm's where it is there."""
    step = STEPS[name]
    plainly = step["size"] == 32 and not step.get("dropout")
    options = {"dropout": 0.0, "attention": {"dropout": 0.0}} if plainly else {}
    plain = vitrail.create(step["model"], **options)
    found = {"plain": (plain, ())}
    short = step["size"] == 32 or "Swin" in name
    for way in (PARTS[:1], PARTS) if short else (PARTS[:1], (*PARTS[:1], FP8)):
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


def refuse(tensor: Tensor) -> bool:
    return False


def only(parts: tuple[str, ...]) -> None:
    """Layers use these kernels alone, in what is traced and in what was traced so: compiled code looks at it."""
    kernels.suits = SUITS if parts else refuse
    kernels.WIDTHS = WIDTHS if "window_attention" in parts else ()
    kernels.DROPOUT = bool(parts)


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
        self.runs = {"train": step_of(model.train(), images, labels, recorded=step.get("recorded", False))}
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
    """Compiles the contenders of one model, waits to be told, measures them; `warm` fills the cache for one alone."""
    models = contenders(name)
    if warm:
        Contender(name, *models[warm])
        return
    built = {contender: Contender(name, *model) for contender, model in models.items()}
    print(f"{name}: ready, " + ", ".join(f"{one} {built[one].row['compile_s']:.0f} s" for one in built), flush=True)
    stem = name.replace("/", "_")
    (folder / f"{stem}.ready").touch()
    while not (folder / f"{stem}.go").exists():
        time.sleep(0.05)
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
    (folder / f"{stem}.json").write_text(json.dumps(rows))


def steps(meanwhile: Run, before: Run, rounds: int, chosen: list[str]) -> list[dict[str, Any]]:
    """All models' steps; `meanwhile` runs while they compile, `before` after that, before any is measured."""
    with tempfile.TemporaryDirectory() as path:
        folder, found = Path(path), []
        command = [sys.executable, __file__, "--folder", path, "--rounds", str(rounds), "--child"]
        children = {name: subprocess.Popen([*command, name]) for name in chosen}
        for name in chosen:  # what takes longest to compile, compiles its contenders side by side
            for contender in STEPS[name].get("warm", ()):
                subprocess.Popen([*command, name, "--warm", contender])
        meanwhile()
        for name, process in children.items():
            while process.poll() is None and not (folder / f"{name.replace('/', '_')}.ready").exists():
                time.sleep(0.1)
        before()
        for name, process in children.items():
            (folder / f"{name.replace('/', '_')}.go").touch()
            process.wait()
            result = folder / f"{name.replace('/', '_')}.json"
            found += json.loads(result.read_text()) if result.exists() else []
    return found


def show(found: list[dict[str, Any]]) -> None:
    """The table of steps."""
    for row in found:
        low, high = row["range"]
        print(
            f"{row['model']:14s} {row['what']:5s} {row['contender']:30s} {row['images_per_s']:9,.0f} images/s "
            f"{row['ms']:8.2f} ms {row['times_plain']:6.3f} ({low:.3f} to {high:.3f}) {row['peak_GB']:5.1f} GB "
            f"losses {', '.join(f'{loss:.4f}' for loss in row['losses'])}"
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", nargs="*", default=["check", "micro", "steps"])
    options.add_argument("--kernels", nargs="*", default=list(KERNELS), choices=KERNELS, help="of check and micro")
    options.add_argument("--models", nargs="*", default=list(STEPS))
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--json", type=Path)
    options.add_argument("--child", help=argparse.SUPPRESS)
    options.add_argument("--warm", help=argparse.SUPPRESS)
    options.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.child:
        child(chosen.child, chosen.folder, chosen.rounds, chosen.warm)
        return
    torch.manual_seed(0)
    setting = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, seed 0, {os.cpu_count()} cores"
    report: dict[str, Any] = {"setting": setting}

    def parts(*names: str) -> None:
        for name in names:
            if name in chosen.only:
                report[name] = {"check": check, "micro": micro}[name](chosen.kernels)

    if "steps" in chosen.only:
        before = partial(parts, "micro")
        report["steps"] = steps(partial(parts, "check"), before, chosen.rounds, chosen.models)
        show(report["steps"])
    else:
        parts("check", "micro")
    if "tune" in chosen.only:
        report["tune"] = tune()
    print(setting)
    if chosen.json:
        chosen.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
