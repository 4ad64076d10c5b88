"""Folders of two small runs on the same images, without training, and what runs say of images, made by hand."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import vitrail
from support.registered import tiny
from support.run_folder import NAMES, run_folder
from support.small_tasks import classifier
from vitrail.comparison.by_image import Seen, values_of
from vitrail.runs.evaluate import Evaluation
from vitrail.runs.record import Result

COUNT = 12  # test images


def labelled(folder: Path) -> Path:
    """A few pictures of noise of each class, in train, val and test folders."""
    chance = np.random.default_rng(0)
    for split in ("train", "val", "test"):
        for name in NAMES:
            (folder / split / name).mkdir(parents=True)
            for number in range(COUNT // 2):
                pixels = chance.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number}.png")
    return folder


def made_run(folder: Path, data: Path, *, lr: float = 1e-3, seed: int = 0, **changes: Any) -> Path:
    """The folder of a run of two epochs with random weights, as if it had been trained on the data."""
    torch.manual_seed(seed)
    recipe = {"optimiser": {"lr": lr}, "batch_size": 8, **changes.pop("recipe", {})}
    environment = {"device": "cpu", **changes.pop("environment", {})}
    run_folder(folder, recipe=recipe, source=str(data), environment=environment, **changes)
    rows = [
        {"epoch": epoch, "step": 2 * epoch, "train/loss": 1 / epoch, "val/accuracy": 0.5 + lr * epoch,
         "images_per_second": 80.0, "seconds": 1.5}
        for epoch in (1, 2)
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


def sibling(folder: Path, other: Path) -> Path:
    """A copy of a run whose weights are a little different."""
    shutil.copytree(folder, other, ignore=shutil.ignore_patterns("checkpoints"))
    model = vitrail.load(other)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for values in model.parameters():
            values.add_(0.05 * torch.randn(values.shape, generator=draw))
    vitrail.save(model, other)
    Result.read(folder).write(other)
    return other


def seen_of(right: Sequence[bool]) -> Seen:
    """What a classifier of two classes said that has some images right; every other image is of each class."""
    task = classifier(tiny(num_classes=2), NAMES)
    labels = torch.arange(len(right)) % 2
    said = torch.where(torch.tensor(right), labels, 1 - labels)
    logits = 2.0 * torch.nn.functional.one_hot(said, 2)
    whole, meters = task.metrics(), {}
    for index in range(len(right)):
        meters[index] = task.metrics()
        one = ({"logits": logits[index : index + 1]}, {"label": labels[index : index + 1]})
        meters[index].update(*one)
        whole.update(*one)
    results = whole.compute()
    evaluation = Evaluation(
        task=task, results=results, worst=(), first=(), outputs={}, targets={}, seconds=1.0, waited=0.0,
        device="cpu", name="made",
    )  # fmt: skip
    return Seen(task, evaluation, meters, dict(enumerate(right)), values_of(task, results))
