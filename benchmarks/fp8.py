"""Products in 8 bits, the kernels that round their factors, and the answers of a trained model in 8 bits.

    python benchmarks/fp8.py --json fp8.json                            # one GPU, a minute
    python benchmarks/fp8.py --only agreement --images DATA --count 2000
    python benchmarks/fp8.py --device cpu --only products agreement --tokens 64 --count 20

`products` are the linear maps of ViT-B at batch 256 and ViT-S at batch 512, forward and for the gradient of the tokens:
bf16, 8 bits with one scale for a tensor, and with one for each row, partial sums in fewer bits (fast) and not. `rows`
are the kernels that round, alone and with GELU, beside what they replace, and launched in other ways. `agreement` is
the share of images with the answer of float32: of the model in the package, on its samples, moved and mirrored, or on
images that are named.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import vitrail
from vitrail import hardware
from vitrail.deploy.real_images import read_images
from vitrail.layers import kernels
from vitrail.layers.fp8 import KIND, TOP, Rows
from vitrail.packaged import packaged_folder
from vitrail.runs.trained import open_model
from vitrail.timing import machine

MODELS = {"ViT-B, batch 256": (256 * 197, 768), "ViT-S, batch 512": (512 * 197, 384)}  # tokens and their width
MAPS = {"qkv": (1, 3), "projection": (1, 1), "fc1": (1, 4), "fc2": (4, 1)}  # widths of inputs and outputs
TUNINGS = tuple(itertools.product((2, 4, 8), (4, 8, 12, 24)))  # warps, programs on each multiprocessor
Row = dict[str, Any]


def milliseconds(run: Callable[[], object], device: torch.device) -> float:
    """The median on a GPU, one run on a CPU."""
    if device.type == "cuda":
        import triton.testing

        return triton.testing.do_bench(run, warmup=20, rep=60, return_mode="median")
    began = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - began)


def distance(found: Tensor, expected: Tensor) -> float:
    """||found - expected|| / ||expected||."""
    return float((found.float() - expected.float()).norm() / expected.float().norm())


def at_once(values: Tensor) -> tuple[Tensor, Tensor]:
    """In 8 bits with one scale for all."""
    scale = values.abs().amax().float() / TOP
    return (values.float() / scale).to(KIND), scale


def ways(tokens: Tensor, weight: Tensor) -> dict[str, Callable[[], Tensor]]:
    """M D and E D -> M E, in bf16 and with factors that were rounded before."""
    rows, columns = Rows.of(tokens), Rows.of(weight)
    (small, scale), (light, other) = at_once(tokens), at_once(weight)

    def by_tensor(fast: bool) -> Tensor:
        kind = torch.bfloat16
        return torch._scaled_mm(
            small, light.t(), scale_a=scale, scale_b=other, out_dtype=kind, use_fast_accum=fast
        )  # fmt: skip

    found: dict[str, Callable[[], Tensor]] = {"bf16": lambda: F.linear(tokens, weight)}
    for fast in (True, False):
        end = ", fast" if fast else ""
        found[f"by tensor{end}"] = lambda fast=fast: by_tensor(fast)
        found[f"by row{end}"] = lambda fast=fast: rows.times(columns, torch.bfloat16, fast=fast)
    return found


def products(device: torch.device, most: int | None) -> list[Row]:
    """Milliseconds, TFLOP/s and errors of each map."""
    found = []
    for model, (whole, dim) in MODELS.items():
        count = min(whole, most or whole)
        for name, (inputs, outputs) in MAPS.items():
            for what, (wide, narrow) in {"": (inputs, outputs), ", gradient": (outputs, inputs)}.items():
                tokens = torch.randn(count, wide * dim, device=device, dtype=torch.bfloat16)
                weight = torch.randn(narrow * dim, wide * dim, device=device, dtype=torch.bfloat16) * 0.02
                exact = F.linear(tokens[:256].float(), weight.float())
                for way, run in ways(tokens, weight).items():
                    error, taken = distance(run()[:256], exact), milliseconds(run, device)
                    speed = 2 * count * wide * narrow * dim**2 / taken / 1e9
                    found.append({"model": model, "map": name + what, "way": way, "ms": taken, "TFLOP/s": speed})
                    found[-1] |= {"error": error}
                    said = f"{taken:8.3f} ms {speed:8.1f} TFLOP/s, error {error:.4f}"
                    print(f"{model} {name + what:22s} {way:16s} {said}", flush=True)
    return found


def plain_gelu_rows(x: Tensor, bias: Tensor) -> Rows:
    return Rows.of(F.gelu(x + bias.to(x.dtype)))


def then_rows(x: Tensor, bias: Tensor) -> tuple[Tensor, Rows]:
    out = kernels.bias_gelu(x, bias)
    return out, Rows.of(out)


def rows(device: torch.device) -> list[Row]:
    """The kernels that round, and the compiled operators in their place; bytes are the fewest that have to move."""
    from vitrail.layers import triton_rows

    found = []

    def add(name: str, run: Callable[[], object], size: int) -> None:
        taken = milliseconds(run, device)
        found.append({"what": name, "ms": taken, "TB/s": size / taken / 1e9})
        print(f"{name:52s} {taken:8.3f} ms {size / taken / 1e9:6.2f} TB/s", flush=True)

    compiled = {one: torch.compile(one, dynamic=False) for one in (Rows.of, plain_gelu_rows, then_rows)}
    for count, dim in MODELS.values():
        for width in (dim, 3 * dim, 4 * dim):
            x = torch.randn(count, width, device=device, dtype=torch.bfloat16)
            bias, size = torch.randn(width, device=device), x.numel()
            values, scale = triton_rows.rows_of(x)
            print(f"error of rows {width}: {distance(values.float() * scale, x):.4f}")
            add(f"{count} x {width}: rows, kernel", lambda x=x: triton_rows.rows_of(x), 3 * size)
            add(f"{count} x {width}: rows, compiled", lambda x=x: compiled[Rows.of](x), 3 * size)
        _, values, scale = triton_rows.gelu_rows(x, bias, keep=False)
        print(f"error of GELU's rows: {distance(values.float() * scale, F.gelu(x.float() + bias)):.4f}")
        for keep in (False, True):
            name = f"{count} x {width}: GELU, rows{', kept' * keep}"
            for warps, programs in TUNINGS:
                triton_rows.PROGRAMS, triton_rows._warps = programs, lambda *_, warps=warps, **__: warps
                run = lambda x=x, bias=bias, keep=keep: triton_rows.gelu_rows(x, bias, keep=keep)  # noqa: E731
                add(f"{name}, {warps} warps, {programs} programs", run, (5 if keep else 3) * size)
            way = then_rows if keep else plain_gelu_rows
            add(f"{name}, compiled", lambda x=x, bias=bias, way=way: compiled[way](x, bias), (5 if keep else 3) * size)
    return found


def moved(images: list[Tensor]) -> list[Tensor]:
    """Each image and its mirror image, moved by up to two pixels: C H W, 50 of each."""
    both = [one for image in images for one in (image, image.flip(-1))]
    padded = [F.pad(one[None].float(), (2, 2, 2, 2), mode="replicate")[0].to(one.dtype) for one in both]
    places = itertools.product(range(5), range(5))
    return [
        one[:, top : one.shape[1] - 4 + top, left : one.shape[2] - 4 + left] for top, left in places for one in padded
    ]


def agreement(device: torch.device, images: str | None, count: int) -> list[Row]:
    """Answers of the packaged model in fewer bits beside those in float32; a CPU computes the same products slowly."""
    trained = open_model().to(device)
    some = read_images(images or str(packaged_folder() / "samples"), count)
    some = (some if images else moved(some))[:count]
    fitted = torch.cat([trained.preprocess.fit(image[None])[0] for image in some])
    hardware.fp8_works = lambda where: where.type == "cpu" or torch.cuda.get_device_capability(where) >= (8, 9)
    exact, found = trained.outputs(fitted)["logits"].cpu(), []
    for precision in ("bf16", "fp8"):
        logits = trained.in_precision(precision).outputs(fitted)["logits"].cpu()
        same = float((logits.argmax(dim=1) == exact.argmax(dim=1)).float().mean())
        found.append({"precision": precision, "same": same, "error": distance(logits, exact), "images": len(fitted)})
        print(f"{precision}: the answer of float32 on {same:.2%} of {len(fitted)} images; logits {found[-1]['error']}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["products", "rows", "agreement"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokens", type=int, help="of products, at most")
    parser.add_argument("--images", help="for the agreement: a folder, or data that `vitrail train` takes")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device(chosen.device)
    report: dict[str, Any] = {"setting": machine(device), "vitrail": vitrail.__version__}
    parts: dict[str, Callable[[], list[Row]]] = {
        "products": lambda: products(device, chosen.tokens),
        "rows": lambda: rows(device),
        "agreement": lambda: agreement(device, chosen.images, chosen.count),
    }
    for name in chosen.only:
        report[name] = parts[name]()
        if chosen.json:
            chosen.json.write_text(json.dumps(report, indent=1))
    print(report["setting"])


if __name__ == "__main__":
    main()
