"""Training steps of the small models on a CPU, beside timm's with the same architecture, in one interleaved run.

    OMP_NUM_THREADS=1 python benchmarks/cpu_step.py --rounds 15

The demo's model has vitrail's convolutional stem on both sides, and timm's blocks behind it. Dropout is the same on
both sides, too. A step is forward, backward and AdamW in float32, as `vitrail bench train` measures it. The ratio is
that of each round: the median of all rounds, and the middle half. With --cpu-time, seconds are those of the process,
which other work on the same core does not lengthen.
"""

import argparse
import json
import sys
import time
from math import prod
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch
from support.peers import timm
from torch import Tensor, nn

import vitrail
from vitrail.models.vit import ViT
from vitrail.profiling.training_step import make_step
from vitrail.recipes import read_recipe
from vitrail.timing import interleaved, machine, ratios


class Stem(nn.Module):
    """vitrail's patch embedding as timm calls one."""

    def __init__(self, own: ViT) -> None:
        super().__init__()
        self.embed, self.num_patches = own.patch, prod(own.config.grid(own.config.image_size))

    def forward(self, images: Tensor) -> Tensor:
        return self.embed(images)


def twin(own: ViT) -> nn.Module:
    """A model of timm with as many parameters: learned positions count as parameters there, fixed ones do not."""
    config = own.config
    mean = not config.class_token
    peer = timm.models.VisionTransformer(
        img_size=config.image_size, in_chans=config.channels, embed_dim=config.dim, depth=config.depth,
        num_heads=config.num_heads, num_classes=config.num_classes, class_token=config.class_token,
        global_pool="avg" if mean else "token", final_norm=True, fc_norm=False, proj_drop_rate=config.dropout,
        pos_drop_rate=config.dropout, attn_drop_rate=config.attention.dropout, embed_layer=lambda **_: Stem(own),
    )  # fmt: skip
    fixed = peer.pos_embed.numel() if "SinCos" in type(config.position[0]).__name__ else 0
    ours, theirs = (sum(value.numel() for value in model.parameters()) for model in (own, peer))
    if theirs - fixed != ours:
        raise SystemExit(f"timm's model has {theirs:,} parameters, vitrail's {ours:,}: they are not alike")
    return peer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--models", nargs="+", default=["demo", "vit32_small", "vit32_small, no dropout"])
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", type=Path)
    chosen, found = parser.parse_args(), []
    clock = time.process_time if chosen.cpu_time else time.perf_counter
    recipe = read_recipe("demo")
    plain = {"dropout": 0.0, "attention": {"dropout": 0.0}}
    options = {"demo": (recipe["model"], recipe["options"] | {"num_classes": 10}), "vit32_small": ("vit32_small", {})}
    options["vit32_small, no dropout"] = "vit32_small", plain
    for name in chosen.models:
        torch.manual_seed(0)
        model, changes = options[name]
        own = vitrail.create(model, **changes)
        images = torch.rand(chosen.batch, own.config.channels, *own.config.image_size)
        other = vitrail.create(model, **changes)
        models = {"vitrail": own, "timm": twin(other)}
        runs = {label: make_step(each, images, mode="train", precision="float32") for label, each in models.items()}
        taken = interleaved(runs, rounds=chosen.rounds, clock=clock)
        against = ratios(taken, "timm")["vitrail"]
        ms = {label: 1000 * sorted(times)[len(times) // 2] for label, times in taken.items()}
        found.append({"model": name, "batch": chosen.batch, "ms": ms, "vitrail / timm": against})
        print(
            f"{name:24s} vitrail {ms['vitrail']:8.1f} ms, timm {ms['timm']:8.1f} ms: {against} times as fast",
            flush=True,
        )
    print(machine())
    if chosen.json:
        chosen.json.write_text(json.dumps({"setting": machine(), "rows": found}, indent=1))


if __name__ == "__main__":
    main()
