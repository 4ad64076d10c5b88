"""The speed of a plain ViT compared with timm, Hugging Face and torchvision, in one interleaved run.

    python benchmarks/speed.py --model base --batch 8 --json speed.json
    python benchmarks/speed.py --device cuda --dtype bfloat16 --batch 256 --compile

Contenders are interleaved, round by round, so that noise affects all of them; the table gives the speed of each as a
multiple of timm's in the same round: the median and the interquartile range.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import torch
from rich.console import Console
from rich.table import Table
from support.peers import timm, torchvision, transformers
from torch import Tensor, nn

import vitrail

SIZES = {"tiny": (192, 12, 3), "small": (384, 12, 6), "base": (768, 12, 12), "large": (1024, 24, 16)}


class Logits(nn.Module):
    """A Hugging Face classifier that returns a tensor, as the others do."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images).logits


def contenders(size: str) -> dict[str, nn.Module]:
    """The same architecture, patch 16 at 224 px, 1,000 classes, from four libraries."""
    dim, depth, heads = SIZES[size]
    hf = transformers.ViTConfig(
        hidden_size=dim, num_hidden_layers=depth, num_attention_heads=heads, intermediate_size=4 * dim, num_labels=1000,
        attn_implementation="sdpa",
    )  # fmt: skip
    tv = {"image_size": 224, "patch_size": 16, "num_layers": depth, "num_heads": heads, "hidden_dim": dim}
    return {
        "vitrail": vitrail.create(f"vit_{size}_patch16"),
        "timm": timm.create_model(f"vit_{size}_patch16_224"),
        "transformers": Logits(transformers.ViTForImageClassification(hf)),
        "torchvision": torchvision.models.VisionTransformer(mlp_dim=4 * dim, **tv),
    }


def forward(model: nn.Module, images: Tensor) -> Callable[[], object]:
    model.eval()

    def run() -> object:
        with torch.inference_mode():
            return model(images)

    return run


def training(model: nn.Module, images: Tensor) -> Callable[[], object]:
    """Forward, loss and backward; the optimiser would be the same for all."""
    model.train()
    target = torch.randint(1000, (len(images),), device=images.device)

    def run() -> object:
        model.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(images).float(), target)
        loss.backward()
        return loss

    return run


def seconds(run: Callable[[], object], times: int, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        run()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / times


def measure(runs: dict[str, Callable[[], object]], rounds: int, times: int, device: str) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        seconds(run, 2, device)  # warm-up, and compilation where asked for
    for turn in range(rounds):
        order = list(runs)[turn % len(runs) :] + list(runs)[: turn % len(runs)]
        for name in order:
            taken[name].append(seconds(runs[name], times, device))
    return taken


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", choices=SIZES, default="base")
    options.add_argument("--batch", type=int, default=8)
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    options.add_argument("--compile", action="store_true")
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--times", type=int, default=1, help="runs of one contender in a round")
    options.add_argument("--modes", default="forward,training")
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    dtype = getattr(torch, chosen.dtype)
    images = torch.randn(chosen.batch, 3, 224, 224, device=chosen.device, dtype=dtype)
    hardware = (
        torch.cuda.get_device_name() if chosen.device == "cuda" else f"{platform.machine()}, {os.cpu_count()} cores"
    )
    header = (
        f"ViT-{chosen.model}/16, batch {chosen.batch}, {chosen.dtype}, {'compiled' if chosen.compile else 'eager'}; "
        f"{hardware}; torch {torch.__version__}, timm {timm.__version__}, transformers {transformers.__version__}, "
        f"torchvision {torchvision.__version__}; seed 0, {chosen.rounds} rounds"
    )
    table = Table("mode", "library", "images/s", "times timm", "middle half", title=header)
    results = []
    for mode, make in (("forward", forward), ("training", training)):
        if mode not in chosen.modes:
            continue
        models = {name: model.to(chosen.device, dtype) for name, model in contenders(chosen.model).items()}
        if chosen.compile:
            models = {name: torch.compile(model) for name, model in models.items()}
        taken = measure({n: make(m, images) for n, m in models.items()}, chosen.rounds, chosen.times, chosen.device)
        for name, times in taken.items():
            ratios = [b / a for a, b in zip(times, taken["timm"], strict=True)]
            low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
            middle, rate = statistics.median(ratios), chosen.batch / statistics.median(times)
            table.add_row(mode, name, f"{rate:,.1f}", f"{middle:.3f}", f"{low:.3f} to {high:.3f}")
            results.append(
                {"mode": mode, "library": name, "images_per_s": rate, "ratio": middle, "low": low, "high": high}
            )
    Console(width=140).print(table)
    if chosen.json:
        chosen.json.write_text(json.dumps({"setting": header, "results": results}, indent=2))


if __name__ == "__main__":
    main()
