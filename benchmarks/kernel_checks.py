"""The kernels for NVIDIA GPUs alone: held against plain ops in float64, timed against the memory's speed, and tuned.

    python benchmarks/kernel_checks.py --json checks.json                     # one GPU
    python benchmarks/kernel_checks.py --only check tune --kernels sample_levels

`micro` is one layer's worth of each kernel and of what it replaces; `tune` launches kernels in other ways. Checks of
each kernel and type run beside one another, in processes of their own, since most of their time goes into compiling.
What fails is printed and left out; JSON is written after each part.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import norm_checks  # the script beside this one
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.layers import kernels
from vitrail.layers.attention import Site, WindowAttention, WindowConfig
from vitrail.layers.attention.deformable_multiscale import sampled
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
WINDOW_TUNINGS = ((4, 1), (4, 2), (8, 1), (8, 2))  # warps, programs on each multiprocessor: 65 tokens
KERNELS = ("bias_gelu", "window_attention", "sample_levels", "add_norm")
DTYPES = {"bfloat16": 1e-2, "float16": 2e-3, "float32": 1e-5}  # and how far results may be off
SHAPES = ((64, 197, 3072), (3, 7, 40), (2, 5, 129), (1, 1, 1536), (1000, 384))
LONG = 64  # places of a tile: larger ones take minutes to compile in float32, which layers do not use
Run = Callable[[], object]
Row = dict[str, Any]
DEVICE = "cuda"


def distance(found: Tensor, expected: Tensor) -> float:
    """||found - expected|| / ||expected||; not divided where 0 is expected, as of a branch that is dropped."""
    return (found.double() - expected.double()).norm().item() / (expected.double().norm().item() or 1.0)


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


def check_gelu(shape: tuple[int, ...], dtype: torch.dtype, limit: float) -> list[Row]:
    x, bias, grad = torch.randn(shape).mul(2).to(dtype), torch.randn(shape[-1]), torch.randn(shape).to(dtype)
    x, bias, grad = x.to(DEVICE), bias.to(DEVICE), grad.to(DEVICE)
    expected = gradients(lambda x, b: F.gelu(x + b), [x.double(), bias.double()], grad)
    found = gradients(kernels.bias_gelu, [x, bias], grad)
    return [_judged(f"bias_gelu {tuple(shape)}", dtype, found, expected, limit)]


def check_windows(site: str, dtype: torch.dtype, limit: float) -> list[Row]:
    grid, _, _, heads, width = SITES[site]
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
    return [_judged(f"window_attention {site}", dtype, found, expected, limit)]


def check_levels(site: str, dtype: torch.dtype, limit: float) -> list[Row]:
    grids = LEVELS[site][0]
    inputs, grad = level_inputs(site, 2, dtype)
    found = gradients(partial(kernel_levels, grids), [one.clone() for one in inputs], grad)
    expected = gradients(partial(plain_levels, grids), [one.double() for one in inputs], grad)
    return [_judged(f"sample_levels {site}", dtype, found, expected, limit)]


def check_norm(shape: tuple[int, ...], dtype: torch.dtype, limit: float) -> list[Row]:
    rows = []
    for stream in {torch.float32, dtype}:
        for scaled in (False, True):
            name = f"add_norm {shape}, stream {stream}{', gain and keep' if scaled else ''}"
            found, expected, same = norm_checks.compared(shape, dtype, stream, scaled=scaled)
            rows.append(_judged(name, dtype, found, expected, limit) | {"same": same})
            if not same:
                print(f"MOVES {name} {dtype}")
    return rows


def check(chosen: Sequence[str], types: Sequence[str]) -> list[Row]:
    """Each kernel, forward and backward, against plain ops in float64."""
    rows = []
    for name, kind in ((name, kind) for name in chosen for kind in types):
        dtype, limit = getattr(torch, kind), DTYPES[kind]
        short = [site for site, (_, (rows_, columns), *_) in SITES.items() if rows_ * columns <= LONG]
        sites = {
            "bias_gelu": (check_gelu, SHAPES),
            "window_attention": (check_windows, short if kind == "float32" else SITES),
            "sample_levels": (check_levels, LEVELS),
            "add_norm": (check_norm, norm_checks.SHAPES),
        }
        one_check, cases = sites[name]
        for case in cases:
            rows += tried(f"check {name} {case} {kind}", partial(one_check, case, dtype, limit))
    return rows


def beside(commands: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """What these options of this script measure, in processes side by side; their output follows one by one."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{number}.json") for number in range(len(commands))]
        running = [
            subprocess.Popen(
                [sys.executable, __file__, *options, "--json", str(file)],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for options, file in zip(commands, files, strict=True)
        ]  # fmt: skip
        for process in running:
            print(process.communicate()[0], end="", flush=True)
        return [json.loads(file.read_text()) for file in files if file.exists()]


def tried(name: str, run: Callable[[], list[Row]]) -> list[Row]:
    """The rows of a measurement; of one that fails, what it said: all others are still measured."""
    try:
        return run()
    except Exception as error:  # of a compiler or a driver, of any kind
        traceback.print_exc()
        print(f"FAILED {name}: {error}", flush=True)
        return [{"name": name, "error": str(error)[:500]}]


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
    rows = tried("copy", lambda: [timed("copy", lambda: target.copy_(source), 2 * len(source))])
    measured = (micro_gelu, micro_windows, micro_levels, micro_norm)
    for name in chosen:
        rows += tried(f"micro {name}", measured[KERNELS.index(name)])
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


def micro_norm() -> list[dict[str, Any]]:
    rows = []
    for shape in norm_checks.SIZES:
        for stream in (torch.float32, torch.bfloat16):
            for name, way in (
                ("plain", torch.compile(norm_checks.plain, dynamic=False)),
                ("kernel", norm_checks.fused),
            ):
                for what, run, size in norm_checks.passes(way, shape, stream):
                    rows.append(timed(f"add_norm {shape}, stream {stream}, {name}, {what}", run, size))
    return rows


def tune(chosen: Sequence[str], only: int | None = None) -> list[Row]:
    """Other ways to launch kernels: sampled levels in the encoder of Deformable DETR, attention of 65 tokens, norms.

    All are compiled first, side by side; `only` compiles and measures one.
    """
    ways = [partial(tune_levels, *way) for way in TUNINGS if "sample_levels" in chosen]
    if "window_attention" in chosen:
        ways += [partial(tune_windows, *way, rate=rate) for rate in (0.0, 0.1) for way in WINDOW_TUNINGS]
    streams = (torch.float32, torch.bfloat16) if "add_norm" in chosen else ()
    ways += [partial(tune_norm, shape, stream) for shape in norm_checks.SIZES for stream in streams]
    if only is None:
        beside([["--only", "tune", "--kernels", *chosen, "--way", str(number)] for number in range(len(ways))])
        print("all are compiled; now one after the other", flush=True)
    rows = []
    for way in ways if only is None else ways[only : only + 1]:
        rows += tried(f"tune {way}", way)
    return rows


def tune_levels(elements: int, warps: int) -> list[Row]:
    from vitrail.layers import triton_deformable as module

    site = "Deformable DETR encoder"
    inputs, grad = level_inputs(site, 16, torch.bfloat16)
    module.FORWARD = module.BACKWARD = module.Tuning(elements, warps)
    return both_ways(f"tile of {elements}, {warps} warps", partial(kernel_levels, LEVELS[site][0]), inputs, grad)


def tune_windows(warps: int, programs: int, *, rate: float) -> list[Row]:
    from vitrail.layers import triton_windows as module

    (grid, _, _, heads, width), module.FORWARD[128] = SITES["65 tokens"], module.Tuning(warps, programs, 1)
    module.BACKWARD[128] = module.FORWARD[128]
    qkv = torch.randn(1024, grid[1], 3 * heads * width, device=DEVICE, dtype=torch.bfloat16)
    options = {"num_heads": heads, "grid": grid, "size": grid, "shift": (0, 0), "scale": width**-0.5, "dropout": rate}
    name = f"65 tokens, dropout {rate}, {warps} warps, {programs} programs"
    grad = torch.randn_like(qkv[..., : heads * width])
    return both_ways(name, lambda qkv: kernels.window_attention(qkv, None, **options), [qkv], grad)


def tune_norm(shape: tuple[int, ...], stream: torch.dtype) -> list[Row]:
    rows = []
    for tuning in (None, *norm_checks.TUNINGS):
        norm_checks.launched(tuning, shape[-1])
        for what, run, size in norm_checks.passes(norm_checks.fused, shape, stream):
            rows.append(timed(f"{shape}, stream {stream}, {tuning or 'as chosen'}, {what}", run, size))
    return rows


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", nargs="*", default=["check", "micro", "tune"], choices=["check", "micro", "tune"])
    options.add_argument("--kernels", nargs="*", default=list(KERNELS), choices=KERNELS)
    options.add_argument("--dtypes", nargs="*", default=list(DTYPES), choices=list(DTYPES), help="of check")
    options.add_argument("--json", type=Path)
    options.add_argument("--way", type=int, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    torch.manual_seed(0)
    setting = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, seed 0, {os.cpu_count()} cores"
    report: dict[str, Any] = {"setting": setting}
    pairs = [(name, kind) for name in chosen.kernels for kind in chosen.dtypes]

    def checks() -> list[Row]:
        if len(pairs) == 1:
            return check(chosen.kernels, chosen.dtypes)
        found = beside([["--only", "check", "--kernels", name, "--dtypes", kind] for name, kind in pairs])
        return [row for one in found for row in one.get("check", ())]

    parts = {
        "check": checks,
        "micro": partial(micro, chosen.kernels),
        "tune": partial(tune, chosen.kernels, chosen.way),
    }
    for name in chosen.only:
        report[name] = parts[name]()
        if chosen.json:
            chosen.json.write_text(json.dumps(report, indent=1))
    print(setting)


if __name__ == "__main__":
    main()
