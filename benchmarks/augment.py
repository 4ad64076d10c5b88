"""Images per second of the batched augmentation, compared with torchvision's transforms of single images.

    python benchmarks/augment.py --json augment.json
    python benchmarks/augment.py --device cuda --batch 1024 --rounds 20

One table for each operation and for whole recipes, and one for implementations of random resized crops of a batch: two
matrix products (small images, and GPUs), slicing and `interpolate` in a loop (large images on CPUs), and
`grid_sample`, which does not antialias. Contenders are interleaved, round by round; the last column is the largest
difference from the loop, where 1 is the range of values. Here crops are only enlarged, for which products and loop use
the same four weights in the same order and agree exactly (CPU, float32); crops that are reduced, where they differ by
about 2e-6, are tested in tests/data/augment/test_resample.py.

Operations on single images are timed on the first 64: on a GPU, torchvision launches dozens of kernels for each image,
and a whole batch would take minutes. A row ends after its rounds or after `--seconds`, but not before its third round.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from support import peers
from torch import Tensor
from torchvision.transforms import v2

from vitrail.data.augment.augmentation import Augment, AugmentConfig, MixConfig
from vitrail.data.augment.mix import Mix
from vitrail.data.augment.resample import BOX_DRAWS, Boxes, crop_all, crop_each, random_boxes
from vitrail.data.dataset import Batch
from vitrail.data.randomness import Stream

SEED = 0
CLASSES = 10
HALF = [0.5, 0.5, 0.5]
COLOUR = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}
NOTHING = AugmentConfig(crop="none", flip=False)
STRONG = AugmentConfig(scale=(0.35, 1.0), colour=0.4, randaugment=2, erase=0.25)
ONE_BY_ONE = 64  # images to time an operation on single images
FEWEST = 3  # rounds
BILINEAR = v2.InterpolationMode.BILINEAR


class Contender(NamedTuple):
    """A function to time, and the number of images it processes."""

    run: Callable[[], object]
    images: int


def own(config: AugmentConfig, batch: Batch, size: int, mix: MixConfig | None = None) -> Contender:
    augment = Augment(config, image_size=(size, size), channels=3, seed=SEED)
    mixing = Mix(mix, num_classes=CLASSES, seed=SEED) if mix else None

    def run() -> object:
        done = augment(batch, epoch=0)
        return mixing(done, epoch=0) if mixing else done

    return Contender(run, len(batch.images))


def theirs(steps: list[Callable[[Tensor], Tensor]], batch: Batch) -> Contender:
    """torchvision, image by image; conversion to float and normalisation come last, except for erasing."""
    end = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(HALF, HALF)]
    erasing = [step for step in steps if isinstance(step, v2.RandomErasing)]
    chain = v2.Compose([step for step in steps if step not in erasing] + end + erasing)
    images = batch.images[:ONE_BY_ONE]
    return Contender(lambda: torch.stack([chain(image) for image in images]), len(images))


def recipes(batch: Batch, size: int) -> dict[str, dict[str, Contender]]:
    """The operation of vitrail and of torchvision, by row of the table."""
    cubic = v2.InterpolationMode.BICUBIC
    crop_step = v2.RandomResizedCrop(size, scale=(0.35, 1.0), interpolation=cubic)
    flip_step, jitter_step = v2.RandomHorizontalFlip(), v2.ColorJitter(**COLOUR)
    random_step, erase_step = v2.RandAugment(2, 27, interpolation=BILINEAR), v2.RandomErasing(p=0.25)
    both = MixConfig(mixup=0.8, cutmix=1.0)
    rows = {
        "normalise": (NOTHING, []),
        "resized crop, flip": (AugmentConfig(), [crop_step, flip_step]),
        "shift, flip": (AugmentConfig(crop="shift"), [v2.RandomCrop(size, padding=4), flip_step]),
        "colour": (AugmentConfig(crop="none", flip=False, colour=0.4), [jitter_step]),
        "RandAugment, 2": (AugmentConfig(crop="none", flip=False, randaugment=2), [random_step]),
        "erase": (AugmentConfig(crop="none", flip=False, erase=0.25), [erase_step]),
        "all of these": (STRONG, [crop_step, flip_step, jitter_step, random_step, erase_step]),
    }
    runs = {
        name: {"vitrail": own(config, batch, size), "torchvision": theirs(steps, batch)}
        for name, (config, steps) in rows.items()
    }
    mixed = Augment(NOTHING, image_size=(size, size), channels=3, seed=SEED)(batch, epoch=0)
    mix = Mix(both, num_classes=CLASSES, seed=SEED)
    # One method, share and order for the whole batch, where vitrail draws them for each image.
    peer = v2.RandomChoice([v2.MixUp(alpha=0.8, num_classes=CLASSES), v2.CutMix(alpha=1.0, num_classes=CLASSES)])
    runs["Mixup or CutMix"] = {
        "vitrail": Contender(lambda: mix(mixed, epoch=0), len(batch.images)),
        "torchvision": Contender(lambda: peer(mixed.images, mixed.labels), len(batch.images)),
    }
    runs["all, and mixed"] = {"vitrail": own(STRONG, batch, size, both)}
    return runs


def crops(images: Tensor, boxes: Boxes, size: int) -> dict[str, Callable[[], Tensor]]:
    """Three implementations of a batch of crops."""
    flip = torch.zeros(len(images), dtype=torch.bool, device=images.device)
    height, width = images.shape[2:]

    def sampled() -> Tensor:
        steps = (torch.arange(size, device=images.device) + 0.5) / size
        x = (boxes.left[:, None] + boxes.width[:, None] * steps) * (2 / width) - 1  # B W'
        y = (boxes.top[:, None] + boxes.height[:, None] * steps) * (2 / height) - 1  # B H'
        grid = torch.stack([x[:, None].expand(-1, size, -1), y[:, :, None].expand(-1, -1, size)], dim=-1)
        return F.grid_sample(images.float(), grid, mode="bicubic", padding_mode="border", align_corners=False)

    return {
        "products": lambda: crop_all(images, boxes, (size, size), flip=flip),
        "loop": lambda: crop_each(images, boxes, (size, size), flip=flip),
        "grid_sample": sampled,
    }


def seconds(run: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def rates(contenders: dict[str, Contender], rounds: int, most: float, device: str) -> dict[str, float]:
    """Images per second, the median of the rounds; no round starts after `most` seconds."""
    for contender in contenders.values():
        contender.run()
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    began = time.perf_counter()
    for turn in range(rounds):
        if turn >= FEWEST and time.perf_counter() - began > most:
            break
        names = list(contenders)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            taken[name].append(seconds(contenders[name].run, device))
    return {name: contenders[name].images / statistics.median(times) for name, times in taken.items()}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--batch", type=int, default=512)
    options.add_argument("--size", type=int, default=32)
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--seconds", type=float, default=3.0, help="of a row, after which no further round begins")
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(SEED)
    images = torch.randint(0, 256, (chosen.batch, 3, chosen.size, chosen.size), dtype=torch.uint8, device=chosen.device)
    ids = torch.arange(chosen.batch, device=chosen.device)
    batch = Batch(images, ids % CLASSES, ids)
    hardware = torch.cuda.get_device_name() if chosen.device == "cuda" else platform.machine()
    about = (
        f"batch {chosen.batch} of {chosen.size} x {chosen.size}; {hardware}, {chosen.threads} threads; "
        f"torch {torch.__version__}, torchvision {peers.torchvision.__version__}; up to {chosen.rounds} rounds"
    )
    console = Console(width=None if sys.stdout.isatty() else 120)
    table, results = Table("operation", "vitrail, images/s", "torchvision", "times", title=about), []
    for name, runs in recipes(batch, chosen.size).items():
        rate = rates(runs, chosen.rounds, chosen.seconds, chosen.device)
        peer = rate.get("torchvision")
        shown = (f"{peer:,.0f}", f"{rate['vitrail'] / peer:.1f}") if peer else ("", "")
        table.add_row(name, f"{rate['vitrail']:,.0f}", *shown)
        results.append({"operation": name, **rate})
    console.print(table)

    stream = Stream(SEED, 0, ids)
    boxes = random_boxes(stream.uniform("crop", BOX_DRAWS), (chosen.size, chosen.size), (0.35, 1.0), (3 / 4, 4 / 3))
    ways = crops(images, boxes, chosen.size)
    timed = {name: Contender(way, chosen.batch) for name, way in ways.items()}
    rate, truth = rates(timed, chosen.rounds, chosen.seconds, chosen.device), ways["loop"]()
    table = Table("way to crop", "images/s", "difference")
    for name, way in ways.items():
        difference = float((way() - truth).abs().max()) / 255
        table.add_row(name, f"{rate[name]:,.0f}", f"{difference:.1e}")
        results.append({"way": name, "rate": rate[name], "difference": difference})
    console.print(table)
    if chosen.json:
        chosen.json.write_text(json.dumps({"about": about, "command": " ".join(sys.argv), "rows": results}, indent=2))


if __name__ == "__main__":
    main()
