"""A whole training run, small enough for a test: 64 images of 8 x 8 pixels, a ViT of 2 blocks, 2 epochs of 4 steps."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.config import to_dict
from vitrail.data.augment.augmentation import Augment
from vitrail.data.augment.mix import Mix
from vitrail.data.dataset import Batch
from vitrail.data.feeds.batches import Batches
from vitrail.data.feeds.packing import Packed
from vitrail.data.preprocess import Preprocess
from vitrail.data.targets import ClassTarget
from vitrail.models.checkpoint import save
from vitrail.models.registry import create
from vitrail.tasks.classify import Classify, ClassifyConfig
from vitrail.tasks.task import Task
from vitrail.training.config import TrainConfig, change
from vitrail.training.distributed import RankedStore, ShardedStore, World, spread
from vitrail.training.logs import Logs
from vitrail.training.loop import Loop
from vitrail.training.optim.ema import Average
from vitrail.training.optim.optimiser import build
from vitrail.training.optim.schedule import Schedule
from vitrail.training.state import Learner
from vitrail.training.step import Step
from vitrail.training.validate import validate

CPU = torch.device("cpu")
CLASSES = ("dark", "light", "left", "right")
SCHEMA = {"label": ClassTarget(classes=CLASSES)}
SEEN = Preprocess(image_size=(8, 8))
RECIPE = change(TrainConfig(), {
    "epochs": 2, "batch_size": 16, "ema": 0.9, "optimiser": {"lr": 3e-3}, "schedule": {"warmup_epochs": 0.5},
    "augment": {"crop": "shift", "padding": 1}, "mix": {"mixup": 0.2}, "save_every": 1,
})  # fmt: skip


class Toy(Classify):
    """Classifies with a tiny ViT; `spoil` makes the loss of some step infinite."""

    def __init__(self, *, spoil: int | None = None, dropout: float = 0.1, **options: Any) -> None:
        small = {"dim": 32, "depth": 2, "num_heads": 2, "image_size": 8, "patch": {"size": 4}, "num_classes": 4}
        options = {"drop_path": 0.2, "dropout": dropout, "init": "trunc_normal", **options}
        super().__init__(ClassifyConfig(), SCHEMA, create("vit_tiny_patch16", **{**small, **options}))
        self.spoil, self.calls = spoil, 0

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        loss = super().loss(batch)["loss"]
        self.calls += 1
        return {"loss": loss * torch.inf if self.calls == self.spoil else loss}


def packed(count: int = 64) -> Packed:
    """Images whose class can be seen: a dark or light one, or one half brighter than the other."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 4
    images = torch.randint(96, 160, (count, 3, 8, 8), generator=draw)
    images[labels == 0] -= 60
    images[labels == 1] += 60
    images[labels == 2, :, :, :4] += 60
    images[labels == 3, :, :, 4:] += 60
    return Packed(
        images=images.to(torch.uint8), targets={"label": labels}, ids=torch.arange(count),
        sizes=torch.full((count, 2), 8, dtype=torch.int32), schema=SCHEMA, name="toy", stored=SEEN,
    )  # fmt: skip


def small_loop(
    folder: Path, *, world: World | None = None, shard: str = "ddp", task: Task | None = None, silent: bool = True,
    model: Mapping[str, Any] | None = None, **changes: Any,
) -> Loop:  # fmt: skip
    """A fresh run in a folder; keywords change its recipe."""
    config, world = change(RECIPE, changes), world or World()
    torch.manual_seed(config.seed)
    task = task or Toy(**(model or {}))
    loss = spread(task, world, shard=shard, device=CPU, precision=config.precision, compiled=config.compile)
    augment = Augment(config.augment, SEEN, seed=config.seed, schema=SCHEMA)
    mix = Mix(config.mix, schema=SCHEMA, seed=config.seed)
    rows = {"seed": config.seed, "device": CPU, "rank": world.rank, "world": world.size}
    feed = Batches(packed(), batch_size=config.batch_size // config.accumulate, shuffle=True, drop_last=True, **rows)
    val = Batches(packed(26), batch_size=16, shuffle=False, **rows)
    precision = "float32" if config.precision == "auto" else config.precision
    where = {"device": CPU, "precision": precision, "world": world}
    store = ShardedStore if shard == "fsdp" and world.size > 1 else RankedStore
    learner = Learner(
        task=task,
        optimiser=build(task, config.optimiser, CPU),
        scaler=torch.amp.GradScaler("cpu", enabled=False),
        ema=None if config.ema is None else Average(task, config.ema),
    )
    treat = lambda batch, epoch: mix(augment(batch, epoch), epoch)  # noqa: E731
    return Loop(
        config=config,
        step=Step(learner=learner, loss=loss, treat=treat, seed=config.seed, clip=config.optimiser.clip, **where),
        feed=feed,
        evaluate=lambda: validate(task, val, SEEN, **where),
        publish=lambda _: save(task.backbone, folder) if shard == "ddp" and world.main else None,
        schedule=Schedule.of(config.schedule, epochs=config.epochs, steps=len(feed) // config.accumulate),
        store=store(folder / "checkpoints", keep=config.keep, world=world),
        identity={"recipe": to_dict(config), "model": to_dict(task.backbone.config)},
        folder=folder,
        logs=Logs(folder, main=world.main, silent=silent),
    )


def resumed(folder: Path, **options: Any) -> Loop:
    """Fresh objects that take up a run where its last checkpoint left it."""
    loop = small_loop(folder, **options)
    loop.resume()
    return loop


def bits(loop: Loop) -> dict[str, Tensor]:
    """Copies of all tensors of a run."""
    return {name: tensor.clone() for name, tensor in loop.learner.tensors().items()}


def same_bits(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """Whether all tensors are equal, bit by bit."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
