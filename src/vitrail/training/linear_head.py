"""Linear probing (Alain and Bengio 2016, arXiv:1610.01644): a head on frozen features, fitted at once.

The features of all training images are computed once, without augmentation, and kept in the cache folder. The head
minimises the loss of the task on them, plus a penalty of its squared weights, which folds of the images choose. With
`augment.flip`, folds also choose whether mirrored images are learned from; where a model gives means of cells of the
image, whether the head reads these.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitrail.data.dataset import Batch, Dataset, Targets
from vitrail.data.feeds.choice import make_feed
from vitrail.data.feeds.feed import ImageSet
from vitrail.data.sources.catalogue import cache_folder
from vitrail.errors import CheckpointError, ConfigError, TrainingError, Unsupported
from vitrail.files import digest, write_tensors
from vitrail.hardware import inference_batch_size
from vitrail.layers.fuse import fuse
from vitrail.models.backbone import Backbone
from vitrail.models.checkpoint.files import read
from vitrail.runs.evaluate import numbers
from vitrail.tasks.task import Task
from vitrail.training.loop import Loop

# Of the squared weights of standardised features.
PENALTIES = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.001)
_FOLDS, _STEPS = 3, 100
LEAST_FOR_FOLDS = 2 * _FOLDS  # images
# Of the usual deviation: features that hardly ever differ are not scaled up further. Otherwise one unlike image, where
# such a feature is thousands of its deviations away, gets any answer.
_RARE = 0.01
_BATCH = 64
_FIELD = "target."  # names of targets in the cache begin so


class Known(NamedTuple):
    """The features of all images of a set, M D, and their targets."""

    features: Tensor
    targets: Targets

    def to(self, device: torch.device) -> "Known":
        """The same on a device."""
        return Known(self.features.to(device), {name: values.to(device) for name, values in self.targets.items()})

    def some(self, rows: Tensor) -> "Known":
        """Those of some images."""
        return Known(self.features[rows], {name: values[rows] for name, values in self.targets.items()})

    def first(self, width: int) -> "Known":
        """The first features of all images."""
        return self._replace(features=self.features[:, :width])


class Fit(NamedTuple):
    """What folds of the images chose."""

    penalty: float
    mirrored: bool
    losses: tuple[float, ...]  # of each fold, by heads fitted to the others; none where there are too few images
    width: int  # of the features that the head reads

    def __str__(self) -> str:
        """Such as "on 1840 features with a penalty of 0.1, from mirrored images too"."""
        mirrored = ", from mirrored images too" if self.mirrored else ""
        return f"on {self.width} features with a penalty of {self.penalty:g}{mirrored}"


def check_head(task: Task) -> nn.Linear:
    """The linear head of a task's model; Unsupported where it has none."""
    model, heads = task.backbone, task.config.num_outputs(task.schema)
    head = model.head
    if not heads or not isinstance(head, nn.Linear) or getattr(model, "distillation_head", None) is not None:
        what = type(model).__name__ if heads else f"the task {task.config.kind}"
        raise Unsupported(f"a probe needs a model with one linear head; {what} has none. Train with --lora 8 instead")
    return head


def fit_probe(loop: Loop, dataset: Dataset, images: ImageSet, prepare: Callable[[Tensor], Tensor]) -> None:
    """Fits the head of a run instead of training it, validates it, and keeps it as the best model.

    `images` are those of `dataset` at one size.
    """
    if loop.world.size > 1:
        raise ConfigError("a probe is fitted by one process; leave out torchrun")
    began, task, now = time.perf_counter(), loop.learner.task, loop.progress
    read = partial(read_features, task.backbone, images, prepare, device=loop.device)
    ledger = loop.logs.ledger
    with ledger.phase("read features"):
        known, mirrored = read(), read(mirror=True) if loop.config.augment.flip else None
    seconds = time.perf_counter() - began
    with ledger.phase("fit the head"):
        fitted = fit_head(task, known, mirrored, groups=groups_of(dataset, images))
    with ledger.phase("validate"):
        results = loop.evaluate()
    value = numbers(results)[task.best_metric]
    now.epoch, now.best, now.best_epoch, now.best_step = 1, value, 1, 0
    speed = {"images_per_second": len(known.features) / seconds, "seconds": time.perf_counter() - began, "waiting": 0.0}
    now.history.append({"epoch": 1, "step": 0, "lr": 0.0, "train": {}, "val": numbers(results), **speed})
    loop.logs.resume(now.history)
    with ledger.phase("save"):
        loop.publish(results)
    loop.logs.say(f"a linear head was fitted {fitted}")


@torch.no_grad()
def read_features(
    model: Backbone, images: ImageSet, prepare: Callable[[Tensor], Tensor], *, device: torch.device,
    mirror: bool = False,
) -> Known:  # fmt: skip
    """What the head of a model reads of all images, or of their mirror images; from the cache where it is there."""
    file = cache_folder() / "features" / f"{_fingerprint(model, images, mirror=mirror)}.safetensors"
    if (stored := _cached(file)) is not None:
        return stored
    model = fuse(deepcopy(model).eval())
    size = inference_batch_size(device, model.config.image_size, most=_BATCH)
    feed = make_feed(images, batch_size=size, seed=0, shuffle=False, device=device)
    vectors, targets = list[Tensor](), dict[str, list[Tensor]]()
    for batch in feed.epoch(0):
        inputs = prepare(batch.images)
        inputs = (inputs.flip(-1) if mirror else inputs).contiguous(memory_format=torch.channels_last)  # also on a CPU
        vectors.append(model.pooled(model.features(inputs)).float().cpu())
        for name, values in batch.targets.items():
            targets.setdefault(name, []).append(values.cpu())
    known = Known(torch.cat(vectors), {name: torch.cat(values) for name, values in targets.items()})
    if not torch.isfinite(known.features).all():
        raise TrainingError("the features of the model are not finite (NaN or infinite): its weights cannot be used")
    write_tensors(
        file, {"features": known.features} | {_FIELD + name: values for name, values in known.targets.items()}, {}
    )
    return known


def _fingerprint(model: Backbone, images: ImageSet, *, mirror: bool) -> str:
    """Tells the features of one model and set of images from others."""
    weights = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("head.")}
    about = f"{model.config!r}|{model.preprocess!r}|{images.checksum()}{'|mirror' if mirror else ''}"
    return digest(about, weights)[:32]


def _cached(file: Path) -> Known | None:
    try:
        tensors = read(file).tensors if file.is_file() else None
    except CheckpointError:  # cut off: it is written again
        return None
    if tensors is None:
        return None
    fields = {name.removeprefix(_FIELD): values for name, values in tensors.items() if name.startswith(_FIELD)}
    return Known(tensors["features"], fields)


def groups_of(dataset: Dataset, images: ImageSet) -> list[str] | None:
    """The group of each image, such as its patient; None where they have none."""
    return None if dataset.groups is None else [dataset.groups[index] for index in images.ids.tolist()]


def fit_head(task: Task, known: Known, mirrored: Known | None = None, *, groups: Sequence[str] | None = None) -> Fit:
    """Fits the head of a task's model to features M D and targets, and to those of mirrored images if that is better.

    Images of a group, and images and their mirror images, are in one fold; folds are judged by images as they are. The
    head gets weights for cells of the image only if that is better than the means of the whole image alone.
    """
    head = check_head(task)
    widths = sorted({task.backbone.width_of_means or head.in_features, head.in_features})
    parts = [part.to(head.weight.device) for part in (known, mirrored) if part is not None]
    mean, scale = _spread(parts[0].features)
    parts = [part._replace(features=(part.features - mean) / scale) for part in parts]
    fold = _folds(len(known.features), groups).to(head.weight.device)
    ways = [(copies, width) for copies in range(1, len(parts) + 1) for width in widths]
    scores = torch.zeros(_FOLDS if len(fold) >= LEAST_FOR_FOLDS else 0, len(ways), len(PENALTIES))
    sizes = fold.bincount(minlength=_FOLDS).cpu()[: len(scores)]
    for number in range(len(scores)):
        for way, (copies, width) in enumerate(ways):
            held = parts[0].some(fold == number).first(width)
            fit = _joined([part.some(fold != number).first(width) for part in parts[:copies]])
            for index, fitted in enumerate(_path(task, fit, head.out_features)):
                scores[number, way, index] = _loss(task, fitted, held).item()
    way, best = divmod(int((scores * sizes[:, None, None]).sum(dim=0).argmin()), len(PENALTIES))
    copies, width = ways[way]
    fit = _joined([part.first(width) for part in parts[:copies]])
    *_, (weight, bias) = _path(task, fit, head.out_features, PENALTIES[: best + 1])
    weight = weight / scale[:width]
    with torch.no_grad():
        head.weight.zero_()[:, :width] = weight
        head.bias.copy_(bias - weight @ mean[:width])
    return Fit(PENALTIES[best], copies > 1, tuple(scores[:, way, best].tolist()), width)


def _folds(count: int, groups: Sequence[str] | None) -> Tensor:
    """The fold of each image, M; groups stay whole, unless there are fewer than folds.

    The largest group goes first, each into the smallest fold: folds are about equal where no group is larger than one.
    """
    sizes = Counter(groups or ())
    seeded = torch.Generator().manual_seed(0)
    if groups is None or len(sizes) < _FOLDS:
        return torch.randperm(count, generator=seeded) % _FOLDS
    place, filled, known = dict[str, int](), [0] * _FOLDS, list(sizes)
    names = [known[index] for index in torch.randperm(len(known), generator=seeded).tolist()]
    for name in sorted(names, key=lambda one: -sizes[one]):
        place[name] = filled.index(min(filled))
        filled[place[name]] += sizes[name]
    return torch.tensor([place[name] for name in groups])


def _spread(features: Tensor) -> tuple[Tensor, Tensor]:
    """Means and deviations of features M D, as they are standardised by: D."""
    mean, scale = features.mean(dim=0), features.std(dim=0, correction=0)
    varied = scale > 1e-6 * (1 + mean.abs())
    usual = scale[varied].median() if varied.any() else 0.0
    return mean, torch.where(varied, scale.clamp_min(_RARE * usual), torch.inf)  # constant features get no weight


def _joined(parts: Sequence[Known]) -> Known:
    """All rows of several sets of features."""
    targets = {name: torch.cat([part.targets[name] for part in parts]) for name in parts[0].targets}
    return Known(torch.cat([part.features for part in parts]), targets)


def _path(
    task: Task, known: Known, num_outputs: int, penalties: Sequence[float] = PENALTIES
) -> Iterator[tuple[Tensor, Tensor]]:
    """Weights K D and biases K for falling penalties; each starts from the one before."""
    weight = known.features.new_zeros(num_outputs, known.features.shape[1])
    bias = known.features.new_zeros(num_outputs)
    for penalty in penalties:
        weight, bias = _minimise(task, known, weight, bias, penalty)
        yield weight, bias


@torch.enable_grad()
def _minimise(task: Task, known: Known, weight: Tensor, bias: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    weight, bias = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    steps = torch.optim.LBFGS(
        [weight, bias], max_iter=_STEPS, tolerance_grad=1e-5, tolerance_change=1e-7, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        steps.zero_grad()
        value = _loss(task, (weight, bias), known) + penalty / 2 * weight.square().sum()
        value.backward()
        return value

    steps.step(loss)
    return weight.detach(), bias.detach()


class _Head(nn.Module):
    """A linear map in the place of a model, so that a task takes features for images."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.map = (weight, bias)

    def forward(self, features: Tensor) -> Tensor:
        """M D -> M K."""
        return nn.functional.linear(features, *self.map)


def _loss(task: Task, fitted: tuple[Tensor, Tensor], known: Known) -> Tensor:
    """The task's loss of a head on features."""
    model = task.backbone
    task.backbone = _Head(*fitted)  # type: ignore[assignment]
    try:
        ids = torch.arange(len(known.features), device=known.features.device)
        return task.loss(Batch(known.features, known.targets, ids))["loss"]
    finally:
        task.backbone = model
