"""Inference: eager, compiled and recorded as a CUDA graph, beside timm, at batch 1 and at larger batches.

    python benchmarks/latency.py --json latency.json
    python benchmarks/latency.py --device cpu --models vit_tiny_patch16 --batches 1 --rounds 3 --ways eager

JSON is written after each model and batch.

    python benchmarks/latency.py --models vit_base_patch16 --batches 256 --ways compiled "compiled bf16" "compiled fp8"

All contenders of a model and batch take turns; ratios are those of rounds, against timm eager, or the first that there
is: the median, and the middle half. Under autocast to bfloat16 on a GPU, float32 on a CPU; random images and weights.
Ways with "bf16" round weights once and use no autocast; those with "fp8" also compute the linear maps of blocks in 8
bits, which timm has no way for.
"""

import argparse
import copy
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch
from support import peers  # noqa: F401  (timm without operators of torchvision)
from torch import Tensor, nn

import vitrail
from vitrail.hardware import autocast
from vitrail.hardware import precision as choose_precision
from vitrail.layers.fp8 import freeze
from vitrail.profiling.model_speed import timm_twin
from vitrail.timing import interleaved, machine, ratios, synchronised

WAYS = ("eager", "compiled", "recorded", "compiled, recorded")
LIGHTER = tuple(
    f"{way} {bits}{end}"
    for bits in ("bf16", "fp8")
    for way, end in (("eager", ""), ("compiled", ""), ("compiled", ", recorded"))
)


def forward(model: nn.Module, images: Tensor, kind: Any, way: str) -> Callable[[], object]:
    """One forward pass, in one of the ways."""
    if way in LIGHTER:
        model, images, kind = copy.deepcopy(model), images.bfloat16(), "float32"
        model = freeze(model) if "fp8" in way else model.bfloat16()
    run = torch.compile(model, dynamic=False) if "compiled" in way else model

    def once() -> Tensor:
        with torch.inference_mode(), autocast(images.device, kind):
            return run(images)

    if "recorded" not in way:
        return once
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            once()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = once()

    def replay(_keep: object = result) -> Tensor:
        graph.replay()
        return result

    return replay


def measure(name: str, batch: int, device: torch.device, chosen: argparse.Namespace) -> list[dict[str, Any]]:
    torch._dynamo.reset()  # else what was compiled for other models and ways counts towards the limit of this one
    kind = choose_precision(chosen.precision, device)[0]
    own = vitrail.create(name).to(device).eval()
    peer, said = timm_twin(name, own)
    models = {"vitrail": own} | ({} if peer is None else {"timm": peer.to(device).eval()})
    images = torch.rand(batch, 3, *own.config.image_size, device=device)
    runs = {}
    for library, model in models.items():
        for way in chosen.ways:
            possible = library == "vitrail" or "fp8" not in way
            if possible and (device.type == "cuda" or "recorded" not in way):
                try:
                    run = forward(model, images, kind, way)
                    run()
                except Exception:  # of a compiler or a driver, of any kind: all others are still measured
                    traceback.print_exc()
                    print(f"FAILED {name}, batch {batch}, {library} {way}", flush=True)
                    continue
                runs[f"{library} {way}"] = synchronised(lambda run=run: [run() for _ in range(chosen.times)], device)
    taken = interleaved(runs, rounds=chosen.rounds)
    base = "timm eager" if "timm eager" in runs else next(iter(runs))
    against, rows = ratios(taken, base), []
    for label, times in taken.items():
        ms = 1000 * sorted(times)[len(times) // 2] / chosen.times
        row = {"model": name, "batch": batch, "what": label, "ms": ms, "images_per_s": 1000 * batch / ms}
        rows.append(row | {"against": base, "times": against[label], "precision": kind})
        print(
            f"{name:26s} {batch:5d} {label:28s} {ms:9.3f} ms {row['images_per_s']:10,.1f}/s  {against[label]}",
            flush=True,
        )
    if peer is None:
        print(said)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", nargs="+", default=["vit_base_patch16", "vit_small_patch16", "swin_tiny_patch4_window7"]
    )
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 256])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=[*WAYS, *LIGHTER])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--times", type=int, default=10, help="passes of a round")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device(chosen.device)
    rows: list[dict[str, Any]] = []
    for name, batch in ((name, batch) for batch in chosen.batches for name in chosen.models):
        rows += measure(name, batch, device, chosen)
        if chosen.json:
            chosen.json.write_text(json.dumps({"setting": machine(device), "rows": rows}, indent=1))
    print(machine(device))


if __name__ == "__main__":
    main()
