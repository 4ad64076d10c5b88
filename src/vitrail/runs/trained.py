"""A trained model ready for use: its task, its preprocessing and the record of its run.

trained = vitrail.open("runs/my-run")  # or a checkpoint; with nothing named, the model that ships with the package
print(trained)
trained.predict("picture.jpg", top=3)
"""

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self

import torch
from PIL import Image
from torch import Tensor

from vitrail.config import to_dict
from vitrail.data.dataset import Dataset
from vitrail.data.preprocess import Preprocess
from vitrail.data.targets import ClassTarget
from vitrail.errors import CheckpointError, ConfigError, Notice, Unsupported
from vitrail.hardware import Lighter, autocast, inference_batch_size
from vitrail.hardware import precision as choose_precision
from vitrail.layers.fp8 import freeze
from vitrail.models.backbone import Backbone
from vitrail.models.checkpoint import load
from vitrail.models.checkpoint.files import read
from vitrail.models.checkpoint.headed import has_head
from vitrail.models.checkpoint.hub import locate
from vitrail.models.checkpoint.outline import check_layers, of_file, outlined
from vitrail.models.registry import create, name_of
from vitrail.packaged import NAME as PACKAGED
from vitrail.runs.evaluate import Evaluation, evaluate_on
from vitrail.runs.headed import open_head
from vitrail.runs.paths import checkpoint_path, is_name
from vitrail.runs.pictures import Pictures
from vitrail.runs.predict import Array, Input, pixels, predict
from vitrail.runs.record import FILE, RESULT, Record, Result, is_run
from vitrail.runs.tiled import find_in_tiles
from vitrail.tasks.answer import Prediction
from vitrail.tasks.classify import ClassifyConfig
from vitrail.tasks.detect.detect_answer import BoxesAnswer
from vitrail.tasks.task import Task

BESIDE = "task.safetensors"  # the file of what a task learned that is not part of its model
TOOLS = ("bench", "explain", "export", "serve")  # functions that take a trained model, in the package `vitrail`
MODEL = "backbone."  # the names of the model's tensors in a task begin so
Size = int | tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A task with its model, and what makes the model's input of images; `record` and `result` where a run left it."""

    source: str
    backbone: Backbone
    preprocess: Preprocess
    head: Task | None  # None where the model has no head
    record: Record | None = None
    result: Result | None = None
    preprocess_known: bool = True  # read from a file; else the usual one is assumed
    pictures: Pictures | None = None  # reads whole pictures at sizes of their own, as Hugging Face does it
    exact: "TrainedModel | None" = None  # the model in float32, where this is its copy in fewer bits

    @property
    def task(self) -> Task:
        """The task; ConfigError where the model has none."""
        if self.head is None:
            raise ConfigError(
                f"{self.source} has no head (num_classes is 0) and makes no predictions; fine-tune it first"
            )
        return self.head

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.backbone.parameters()).device

    def to(self, device: str | torch.device) -> Self:
        """Moves the model to a device."""
        (self.head or self.backbone).to(device)
        return self

    def in_precision(self, precision: Lighter) -> "TrainedModel":
        """A copy for faster answers: weights in bf16, or those of blocks in 8 bits as well; float32: the model itself.

        `evaluate` then also says on which share of images its answer is that of float32.
        """
        if self.exact is not None:
            return self.exact.in_precision(precision)
        chosen, note = choose_precision(precision, self.device)
        if note is not None:
            warnings.warn(note, Notice, stacklevel=2)
        if chosen == "float32":
            return self
        if self.pictures is not None:
            raise Unsupported(f"{self.source} reads whole pictures, which it does in float32 alone")
        task = copy.deepcopy(self.task).eval()
        if precision == "fp8":
            freeze(task.backbone)
        else:
            task.backbone.to(torch.bfloat16)
        return replace(self, backbone=task.backbone, head=task, exact=self)

    @torch.no_grad()
    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        """The task's outputs of fitted images, uint8 B C *image_size: float32 B ... by name."""
        return self._evaluated(self.task.outputs, images)

    def of_view(self, images: Tensor, *, mirrored: bool) -> dict[str, Tensor]:
        """What the task's `average` reads of a view of fitted images, uint8 B C *image_size."""
        return self._evaluated(partial(self.task.of_view, mirrored=mirrored), images)

    def _evaluated(self, read: Callable[[Tensor], Mapping[str, Tensor]], images: Tensor) -> dict[str, Tensor]:
        task, learning = self.task, self.task.training
        pieces = images.split(inference_batch_size(self.device, self.preprocess.image_size, most=max(len(images), 1)))
        kind = torch.float32 if self.exact is None else next(self.backbone.parameters()).dtype
        # What a task has beside its model, such as a decoder, keeps its weights.
        beside = self.exact is not None and beside_model(task)
        task.eval()
        try:
            with autocast(self.device, "bf16") if beside else contextlib.nullcontext():
                found = [read(self.preprocess.normalise(piece.to(self.device)).to(kind)) for piece in pieces]
        finally:
            task.train(learning)
        return {name: torch.cat([one[name] for one in found]).float() for name in found[0]}

    def predict(
        self, inputs: Input | Iterable[Input], *, top: int = 5, tile: int | None = None, draw: str | Path | None = None,
        batch_size: int = 32, on_result: Callable[[Prediction], None] | None = None, precision: Lighter | None = None,
    ) -> list[Prediction]:  # fmt: skip
        """Answers for files, folders, PIL images, arrays and tensors; see `vitrail.runs.predict.predict`."""
        model = self if precision is None else self.in_precision(precision)
        return predict(model, inputs, top=top, tile=tile, draw=draw, batch_size=batch_size, on_result=on_result)

    def find_in_tiles(self, picture: Image.Image | Tensor | Array, tile: int) -> BoxesAnswer:
        """The boxes of a large picture, which is seen in tiles of so many pixels; see `vitrail.runs.tiled`."""
        return find_in_tiles(self, pixels(picture), tile)

    def evaluate(
        self, data: str | Path | Dataset, *, batch_size: int = 256, precision: Lighter | None = None
    ) -> Evaluation:
        """Metrics on labelled images: anything that `train` takes, its test part where there is one, or a data set."""
        model = self if precision is None else self.in_precision(precision)
        return evaluate_on(model, data, batch_size=batch_size)

    @property
    def about(self) -> str:
        """Model, data, result and target, in one sentence."""
        millions = sum(parameter.numel() for parameter in (self.head or self.backbone).parameters()) / 1e6
        named = None if self.record is None else str(self.record.recipe.get("model"))
        kind = name_of(self.backbone.config) or named or type(self.backbone).__name__
        members = getattr(self.head.config, "members", 1) if self.head is not None else 1
        kind = f"an ensemble of {members} {kind}" if members > 1 else kind
        parts = [f"{self.source}: {kind}, {millions:.2f} M parameters{' in all' if members > 1 else ''}"]
        if self.record is not None and self.record.source:
            parts.append(f"trained on {self.record.source}")
        if self.head is not None and self.result is not None and (score := self._score(self.head, self.result)):
            parts.append(score)
        text = ", ".join(parts)
        what = "" if self.head is None else "; ".join(target.describe() for target in self.head.schema.values())
        return f"{text}; {what}" if what else text

    @staticmethod
    def _score(task: Task, result: Result) -> str | None:
        name = task.best_metric
        title = task.about_metrics[name].title if name in task.about_metrics else name
        for split, key in (("test", f"test_{name}"), ("validation", name), ("out-of-fold", f"oof_{name}")):
            if (value := result.metrics.get(key)) is not None:
                return f"{split} {title} {value:.4f}"
        return None

    def __repr__(self) -> str:
        return f"TrainedModel({self.about})"

    if not TYPE_CHECKING:  # a type checker would take any name for an attribute

        def __getattr__(self, name: str) -> NoReturn:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in TOOLS:
                text += f"; use the function vitrail.{name}"
            raise AttributeError(text, name=name, obj=self)


def open_model(source: str | Path = PACKAGED, *, image_size: Size | None = None) -> TrainedModel:
    """The best model of a run's folder with its task and preprocessing; or a checkpoint of ours, timm or Hugging Face.

    A checkpoint's preprocessing is that of the files beside it, or else the usual one. "packaged" is the model that
    ships with the package; a folder of that name is "./packaged". A model's name gives that model with random weights.
    """
    if is_name(source):
        return _random(str(source), image_size)
    path = checkpoint_path(source)
    if not is_run(path) and has_head(local := locate(path)):
        task, preprocess, pictures = open_head(local, image_size)
        return TrainedModel(
            source=str(source), backbone=task.backbone, preprocess=preprocess, head=task, pictures=pictures
        )
    record, result = (Record.read(path), Result.read(path)) if is_run(path) else (None, None)
    backbone = load(path, image_size=image_size)
    known = (record.preprocess if record is not None else None) or backbone.preprocess
    size, channels = backbone.config.image_size, backbone.config.channels
    preprocess = Preprocess(image_size=size, channels=channels) if known is None else replace(known, image_size=size)
    backbone.preprocess = preprocess
    head = _classifier(backbone) if record is None or result is None else _task_of(record, result, backbone, Path(path))
    return TrainedModel(
        source=str(source),
        backbone=backbone.eval(),
        preprocess=preprocess,
        head=None if head is None else head.eval(),
        record=record,
        result=result,
        preprocess_known=known is not None,
    )


def _task_of(record: Record, result: Result, backbone: Backbone, folder: Path) -> Task:
    stored = read(folder / BESIDE).tensors if (folder / BESIDE).is_file() else {}
    with of_file(folder / FILE):
        _check_task(record, backbone, stored)
    task = record.task.build(backbone, record.schema)
    try:
        task.load_state(result.state)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"incomplete run folder: {folder / RESULT} is damaged ({error!r:.300})") from error
    if beside_model(task):
        task.load_state_dict(task.state_dict() | (stored or read(folder / BESIDE).tensors))
    return task


def _check_task(record: Record, backbone: Backbone, stored: Mapping[str, Tensor]) -> None:
    """CheckpointError where what a task has beside its model, such as a decoder, is not in the file of that."""
    check_layers(to_dict(record.task), len(stored))
    outline = outlined(lambda: record.task.build(backbone, record.schema), tensors=len(stored))
    shapes = outline.state_dict()
    for name in beside_model(outline):
        if name in stored and stored[name].shape != shapes[name].shape:
            shape = tuple(stored[name].shape)
            raise CheckpointError(f"the task has {name} {tuple(shapes[name].shape)}; {BESIDE} has {shape}")


def beside_model(task: Task) -> list[str]:
    """The names of what a task learns that is not part of its model, such as a decoder."""
    return [name for name in task.state_dict() if not name.startswith(MODEL)]


def _classifier(model: Backbone) -> Task | None:
    """Classification by a checkpoint's head; None where it has none."""
    if not model.config.num_classes:
        return None
    names = model.labels
    classes = tuple(names or (str(number) for number in range(model.config.num_classes)))
    target = ClassTarget(classes=classes)
    task = ClassifyConfig().build(model, {target.field: target})
    model.labels = names  # numbers are not names to be kept
    return task


def _random(name: str, image_size: Size | None) -> TrainedModel:
    """A named model with random weights, built for its size."""
    warnings.warn(
        f"{name} is the name of a model: its weights are random (seed 0), so this shows how it is built, not what it "
        "learned",
        Notice,
        stacklevel=3,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = create(name, **({} if image_size is None else {"image_size": image_size})).eval()
    config = model.config
    preprocess = Preprocess(image_size=config.image_size, channels=config.channels)
    task = _classifier(model)
    return TrainedModel(source=name, backbone=model, preprocess=preprocess, head=None if task is None else task.eval())
