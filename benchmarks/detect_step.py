"""What a step of a detector costs beside the arithmetic of its model, and beside Hugging Face's Deformable DETR.

    python benchmarks/detect_step.py --json detect_step.json                    # a GPU: ResNet-18, 480 x 640, batch 16
    python benchmarks/detect_step.py --only "vitrail deformable_detr, whole" --profile profile.txt
    python benchmarks/detect_step.py --device cpu --size 64x96 --batch 2 --small --rounds 2

"whole" is augmented images to updated weights: forward, matching, losses, backward, fused AdamW, under bfloat16
autocast on a GPU, with the kernel for sampled levels; "without the kernel" is the same with `grid_sample`. "arithmetic"
is the same model, denoising queries included, with the mean of its outputs as loss: no matching, no losses of boxes.
Contenders take turns, round by round; figures are medians of rounds, with the range.
"""

import argparse
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch
from support import peers
from torch import Tensor

import vitrail
from vitrail.data.dataset import Batch
from vitrail.data.targets.boxes_target import Box, BoxesTarget
from vitrail.layers import kernels
from vitrail.models.heads import DeformableDetrConfig, RtDetrConfig
from vitrail.tasks.detect.denoising import noised
from vitrail.tasks.detect.detection import DetectConfig
from vitrail.tasks.detect.matching import Truth

OBJECTS, CLASSES = 13, ("a", "b", "c")
SMALL = {"queries": 20, "dim": 32, "num_heads": 4, "hidden": 64, "decoder_depth": 2}
HEADS = {
    "rt_detr": {"queries": 100, "decoder_depth": 3},
    "deformable_detr": {"queries": 300, "denoising": 0},
}
KINDS = {"rt_detr": RtDetrConfig, "deformable_detr": DeformableDetrConfig}
Step = Callable[[], object]


def scene(batch: int, size: tuple[int, int], device: torch.device) -> Batch:
    """Noise with OBJECTS boxes an image."""
    torch.manual_seed(0)
    height, width = size
    rows = []
    for _ in range(batch):
        points = torch.rand(OBJECTS, 4) * 0.5
        corners = [
            (x * width, y * height, (x + w + 0.05) * width, (y + h + 0.05) * height) for x, y, w, h in points.tolist()
        ]
        rows.append([Box(box, CLASSES[index % 3]) for index, box in enumerate(corners)])
    _, values = BoxesTarget.of(rows)
    return Batch(torch.randn(batch, 3, height, width, device=device), {"boxes": values.to(device)}, torch.arange(batch))


def ours(kind: str, batch: Batch, args: argparse.Namespace) -> dict[str, Step]:
    """The whole step, and its arithmetic alone."""
    config = DetectConfig(head=KINDS[kind](**(HEADS[kind] | (SMALL if args.small else {}))))
    size = (batch.images.shape[2], batch.images.shape[3])
    backbone = vitrail.create("resnet18", image_size=size, num_classes=0)
    schema = {"boxes": BoxesTarget(classes=CLASSES, most=OBJECTS)}
    task = config.build(backbone, schema).to(batch.images.device).train()
    if args.compile:
        task.compile()
    optimiser = torch.optim.AdamW(task.parameters(), lr=1e-4, fused=True)
    count = config.head.denoising

    def arithmetic() -> Tensor:
        noisy = None
        if count:
            truth = Truth.of(batch.targets["boxes"], size)
            noisy = noised(truth, count, len(CLASSES), label_noise=0.5, box_noise=1.0)
        found = task.head(task.backbone.features(batch.images), noisy)
        parts = (part for part in (found.found, found.proposals, found.noised) if part is not None)
        return sum(
            (part.logits.float().mean() + part.boxes.float().mean() for part in parts),
            torch.zeros((), device=batch.images.device),
        )

    whole = step(lambda: task(batch)["loss"], optimiser, batch.images.device)
    found = {f"vitrail {kind}, whole": whole}
    if batch.images.device.type == "cuda":
        found[f"vitrail {kind}, without the kernel"] = partial(without_kernel, whole)
    return found | {f"vitrail {kind}, arithmetic": step(arithmetic, optimiser, batch.images.device)}


def without_kernel(run: Step) -> None:
    """A step whose layers sample their levels by `grid_sample` in place of the Triton kernel."""
    widths, kernels.SAMPLED_WIDTHS = kernels.SAMPLED_WIDTHS, ()
    try:
        run()
    finally:
        kernels.SAMPLED_WIDTHS = widths


def theirs(batch: Batch, args: argparse.Namespace) -> dict[str, Step]:
    """Deformable DETR of transformers with the same backbone and sizes; nothing where it cannot be imported."""
    try:
        transformers = peers.transformers
    except (ImportError, RuntimeError) as error:
        print(f"without transformers: {error}")
        return {}
    backbone = transformers.ResNetConfig(
        layer_type="basic", depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512],
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    sizes = {"num_queries": 300, "d_model": 256, "layers": 6, "heads": 8, "ffn": 1024}
    if args.small:
        sizes = {"num_queries": 20, "d_model": 32, "layers": 2, "heads": 4, "ffn": 64}
    config = transformers.DeformableDetrConfig(
        backbone_config=backbone, use_timm_backbone=False, use_pretrained_backbone=False, backbone=None,
        num_queries=sizes["num_queries"], d_model=sizes["d_model"], encoder_layers=2 if args.small else 6,
        decoder_layers=sizes["layers"], encoder_attention_heads=sizes["heads"], decoder_attention_heads=sizes["heads"],
        encoder_ffn_dim=sizes["ffn"], decoder_ffn_dim=sizes["ffn"], dropout=0.0, auxiliary_loss=True, two_stage=True,
        two_stage_num_proposals=sizes["num_queries"], with_box_refine=True, num_labels=len(CLASSES),
    )  # fmt: skip
    device = batch.images.device
    model = transformers.DeformableDetrForObjectDetection(config).to(device).train()
    truth = Truth.of(batch.targets["boxes"], (batch.images.shape[2], batch.images.shape[3]))
    labels = [{"class_labels": one, "boxes": boxes} for one, boxes in zip(truth.labels, truth.boxes, strict=True)]
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return {
        "Hugging Face deformable_detr, whole": step(
            lambda: model(pixel_values=batch.images, labels=labels).loss, optimiser, device
        )
    }


def step(loss: Callable[[], Tensor], optimiser: torch.optim.Optimizer, device: torch.device) -> Step:
    def run() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            value = loss()
        value.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return run


def timed(run: Step, steps: int, device: torch.device) -> float:
    """Milliseconds a step."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start) / steps


def profile(run: Step) -> str:
    """The operators that take most of the GPU's time, and of the CPU's."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as found:
        for _ in range(3):
            run()
    tables = (
        found.key_averages().table(sort_by=key, row_limit=18, max_name_column_width=60)
        for key in ("self_cuda_time_total", "self_cpu_time_total")
    )
    return "\n".join(tables)


def ratios(times: dict[str, list[float]]) -> list[str]:
    """What a step costs beside its arithmetic and beside Hugging Face's: medians of the ratios of each round."""
    lines = []
    for name, found in times.items():
        kind, _, what = name.removeprefix("vitrail ").partition(", ")
        bases = {"its arithmetic": f"vitrail {kind}, arithmetic", "Hugging Face's": f"Hugging Face {kind}, whole"}
        if not name.startswith("vitrail") or what == "arithmetic":
            continue
        for base, other in bases.items():
            if other in times:
                each = [one / two for one, two in zip(found, times[other], strict=True)]
                median = statistics.median(each)
                lines.append(f"{name}: {median:.2f} times {base} ({min(each):.2f} to {max(each):.2f})")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", default="480x640")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--small", action="store_true", help="heads of a few layers, to try the script")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--only", default="", help="contenders whose name contains this")
    parser.add_argument("--profile", type=Path, help="also write the operators of the first contender there")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device)
    height, width = map(int, args.size.split("x"))
    batch = scene(args.batch, (height, width), device)
    contenders: dict[str, Step] = {}
    for kind in HEADS:
        contenders |= ours(kind, batch, args)
    contenders |= theirs(batch, args)
    contenders = {name: run for name, run in contenders.items() if args.only in name}
    for name, run in list(contenders.items()):
        try:
            timed(run, 3, device)
        except Exception:  # of a compiler or a driver, of any kind: all others are still measured
            traceback.print_exc()
            print(f"FAILED {name}", flush=True)
            del contenders[name]
    times: dict[str, list[float]] = {name: [] for name in contenders}
    rows: list[dict[str, Any]] = []
    for _ in range(args.rounds):
        for name, run in contenders.items():
            times[name].append(timed(run, args.steps, device))
        rows = [
            {"contender": name, "ms": statistics.median(found), "least": min(found), "most": max(found)}
            for name, found in times.items()
        ]
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        print(f"{row['contender']:40} {row['ms']:8.2f} ms a step ({row['least']:.2f} to {row['most']:.2f})", flush=True)
    for line in ratios(times):
        print(line)
    if args.profile:
        args.profile.write_text(profile(next(iter(contenders.values()))))


if __name__ == "__main__":
    main()
