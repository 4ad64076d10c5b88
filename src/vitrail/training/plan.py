"""What a run will be, decided before its first step: data, model, sizes, batch; each choice with its reason."""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from yaml.error import MarkedYAMLError

from vitrail.config import from_dict, to_dict
from vitrail.data.cache import Packed
from vitrail.data.dataset import Dataset, Splits
from vitrail.data.source import open_data
from vitrail.errors import BrokenImage, ConfigError, HeadNotice, ResampledNotice, TrainingError
from vitrail.layers.lora import add_lora
from vitrail.models.backbone import Backbone, BackboneConfig
from vitrail.models.checkpoint.vitrail import describe_model
from vitrail.models.registry import FAMILIES, build, create, is_known, resolve
from vitrail.packaged import NAME as PACKAGED
from vitrail.recipes import read_recipe
from vitrail.tasks.classify import Classify
from vitrail.tasks.distill import Distill
from vitrail.tasks.distill import Teacher as Listened
from vitrail.tasks.task import Task
from vitrail.training.config import FREE, TrainConfig, change
from vitrail.training.freeze import freeze_until, learning
from vitrail.training.normalisation import of_config
from vitrail.training.start import BORROWED, FOR_LORA, called, changes_weights, check_weights, loaded, normalised
from vitrail.training.trained import open_trained

Source = str | Path | Splits
Teacher = str | Path | nn.Module

_LOOKED_AT = 16  # images, spread over the set, that tell its size and colour
_SMALL = 64  # pixels: images up to here get a model with small patches
_FOR_SMALL = "vit32_conv"
_AT_RANDOM = "what does not learn stays at random, since there are no weights to start from: name some (--from)"
_STEPS = 16  # that an epoch should have at least, where nobody named a batch
_LEAST_BATCH = 16


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that makes a run what it is; `task` gives fresh, equal objects each time."""

    config: TrainConfig
    data: Splits
    source: str | None  # what the data were opened by, where it was a name
    model: Mapping[str, Any]  # family and config, as plain values
    start: str | None  # the weights that a fresh task begins with
    teacher: Teacher | None
    notes: tuple[str, ...]

    @property
    def backbone_config(self) -> BackboneConfig:
        """The config of the model."""
        return from_dict(FAMILIES[self.model["family"]].config, self.model["config"])

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; none where the task reads no labels."""
        return classes_of(self.config, self.data)

    def identity(self, train: Packed) -> dict[str, Any]:
        """What must be equal for one run to go on as another."""
        recipe = {name: value for name, value in to_dict(self.config).items() if name not in FREE}
        data = {"images": len(train), "classes": list(self.classes), "checksum": train.checksum()}
        plain: dict[str, Any] = json.loads(json.dumps({"recipe": recipe, "model": self.model, "data": data}))
        return plain

    def task(self, *, blank: bool = False) -> Task:
        """A fresh task; `blank` without the weights it starts from, where others are about to replace them."""
        torch.manual_seed(self.config.seed)
        config = self.config
        backbone = self.bare(blank=blank)
        if config.lora is not None:
            add_lora(backbone, config.lora)
        if config.freeze_until is not None:
            freeze_until(backbone, config.freeze_until)
        if config.pretrain is not None:
            return config.pretrain.build(backbone)
        several, smoothing, how = self.data.train.multi_label, config.label_smoothing, config.distill
        if self.teacher is None:
            return Classify(backbone, classes=self.classes, multi_label=several, label_smoothing=smoothing)
        return Distill(
            backbone, teacher=self._listened(self.teacher), classes=self.classes, multi_label=several, kind=how.kind,
            weight=how.weight, temperature=how.temperature, label_smoothing=smoothing,
        )  # fmt: skip

    def _listened(self, teacher: Teacher) -> Listened:
        """The teacher, which sees images as its own training did where the files beside its weights tell how."""
        if isinstance(teacher, nn.Module):
            return Listened(teacher)
        opened = open_trained(teacher)
        several = self.data.train.multi_label
        if opened.of_run and opened.multi_label != several:
            words = {True: "several labels an image", False: "one class an image"}
            raise ConfigError(f"the teacher {teacher} knows {words[not several]}, the data have {words[several]}")
        thresholds = getattr(opened.task, "thresholds", None)
        return Listened(
            opened.task.backbone,
            normalisation=opened.normalisation,
            student_normalisation=None if opened.normalisation is None else of_config(self.config.augment),
            thresholds=None if thresholds is None else thresholds.tolist(),
        )

    def finished(self, model: Backbone, thresholds: Sequence[float] | None = None) -> Task:
        """The task around its best model, when there is nothing more to learn."""
        if self.config.pretrain is not None:
            return self.config.pretrain.build(model)
        return Classify(model, classes=self.classes, multi_label=self.data.train.multi_label, thresholds=thresholds)

    def bare(self, *, blank: bool = False) -> Backbone:
        """The model alone, plain linear maps throughout."""
        backbone = build(FAMILIES[self.model["family"]], self.backbone_config)
        if self.start is not None and not blank:
            with warnings.catch_warnings():
                for told in (HeadNotice, ResampledNotice):  # when the plan was made
                    warnings.simplefilter("ignore", told)
                name = self.config.model if is_known(self.config.model) else None
                weights = loaded(self.start, self.config, len(self.classes), model=name).state_dict()
            backbone.load_state_dict(weights)
        backbone.labels = self.classes or None
        return backbone


def classes_of(config: TrainConfig, data: Splits) -> tuple[str, ...]:
    """The classes that a run tells apart."""
    return data.train.classes if config.pretrain is None else ()


@dataclass(frozen=True)
class Seen:
    """What a few images of a set have in common: the median height and width, and whether all are grey."""

    height: int
    width: int
    grey: bool


def make_plan(
    data: Source, *, model: str | None = None, recipe: str | Path | Mapping[str, Any] | None = None,
    start: str | Path | None = None, teacher: Teacher | None = None, val: str | Path | float | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Plan:  # fmt: skip
    """A plan for new data: opens them, looks at a few images, and decides what was left open."""
    changes = {**(changes or {}), **({} if model is None else {"model": model})}
    given = {} if recipe is None else _recipe(recipe)
    named = "model" in {**given, **changes}
    borrowed = start is None and not named and changes_weights(change(_of_recipe(recipe), changes))
    start = PACKAGED if borrowed else start
    config = _tuned(changes) if recipe is None and start is not None else change(_of_recipe(recipe), changes)
    check_weights(config, start)
    _check_labels(config, teacher)
    splits = data if isinstance(data, Splits) else open_data(data, val=val, seed=config.seed)
    seen = look(splits.train)
    notes = [*splits.notes]
    if "batch_size" not in {**given, **changes}:
        config = _with_steps(config, len(splits.train), notes)
    if start is None:
        config, backbone = _fresh(config, splits, seen, notes, named=named)
    else:
        backbone = loaded(start, config, len(classes_of(config, splits)), model=changes.get("model"))
        config = change(config, {"model": called(backbone, start)})
        notes.append(BORROWED if borrowed else f"starts from the weights of {start}, a {config.model}")
        config = normalised(config, start, notes)
    notes += _brought_to(backbone.config, seen, fresh=start is None)
    notes += _warmed_up(config)
    about = {name: value for name, value in describe_model(backbone).items() if name in ("family", "config")}
    plan = Plan(
        config=config,
        data=splits,
        source=None if isinstance(data, Splits) else str(data),
        model=about,
        start=None if start is None else str(start),
        teacher=teacher,
        notes=(),
    )
    if config.pretrain is not None or teacher is not None:
        plan.task(blank=True)  # what cannot learn so, or teach it, is refused before any image is read
    if teacher is not None:
        notes.append(_taught(plan, teacher))
    if config.pretrain is not None:
        notes.append(f"pre-training ({config.pretrain.kind}): no label is read, and the model gets no head")
    if changes_weights(config):
        notes.append(str(learning(plan.task(blank=True))))
        notes += [_AT_RANDOM] if start is None else []
    return Plan(**{**vars(plan), "notes": tuple(notes)})


def _brought_to(config: BackboneConfig, seen: Seen, *, fresh: bool) -> list[str]:
    """What becomes of the images for a model, and whether they are too small for it."""
    height, width = config.image_size
    tint = "in colour" if config.channels > 1 else "grey" if fresh or seen.grey else "grey, as the weights know them"
    notes = [f"images are brought to {height} x {width} pixels, {tint}"]
    if seen.height and max(height, width) > 1.5 * max(seen.height, seen.width):
        small = fresh and max(seen.height, seen.width) <= _SMALL
        which = f"{_FOR_SMALL}, which is taken where no model is named," if small else "a model for smaller images"
        notes.append(f"they are only about {seen.height} x {seen.width}: {which} would be faster")
    return notes


def _warmed_up(config: TrainConfig) -> list[str]:
    """What becomes of a warm-up that would take more than half of the run."""
    asked, most = config.schedule.warmup_epochs, config.epochs / 2
    if asked <= most:
        return []
    return [f"the warm-up is cut to half of the run: {most:g} instead of {asked:g} epochs (schedule.warmup_epochs)"]


def _with_steps(config: TrainConfig, images: int, notes: list[str]) -> TrainConfig:
    """A batch that leaves few images enough steps an epoch to learn from."""
    size = max(1 << (max(images // _STEPS, 1).bit_length() - 1), _LEAST_BATCH)
    if size >= config.batch_size:
        return config
    notes.append(f"there are only {images:,} training images: batch_size is {size}, not {config.batch_size}")
    return change(config, {"batch_size": size})


def _taught(plan: Plan, teacher: Teacher) -> str:
    name, how = type(teacher).__name__ if isinstance(teacher, nn.Module) else teacher, plan.config.distill
    return f"learns from the teacher {name} too ({how.kind}), whose part of the loss is {how.weight:g}"


def _check_labels(config: TrainConfig, teacher: Teacher | None) -> None:
    """Refuses what needs labels where none are read."""
    mixes = config.mix.mixup or config.mix.cutmix or config.mix.patch_mixup
    asked = {"a teacher": teacher is not None, "mix": mixes, "label_smoothing": config.label_smoothing}
    if config.pretrain is not None and (useless := [name for name, is_on in asked.items() if is_on]):
        raise ConfigError(f"pretrain {config.pretrain.kind!r} reads no labels and cannot use {', '.join(useless)}")


def _of_recipe(recipe: str | Path | Mapping[str, Any] | None) -> TrainConfig:
    """The config of a recipe; what is wrong with it is said with the name of its file."""
    try:
        return change(TrainConfig(), _recipe(recipe))
    except ConfigError as error:
        if recipe is None or isinstance(recipe, Mapping) or str(recipe) in str(error):
            raise
        raise ConfigError(f"recipe {recipe}: {error}") from error


def _tuned(changes: Mapping[str, Any]) -> TrainConfig:
    """How weights are fine-tuned where no recipe was named."""
    plain = _of_recipe("finetune")
    return change(change(plain, FOR_LORA) if changes.get("lora") is not None else plain, changes)


def _recipe(recipe: str | Path | Mapping[str, Any] | None) -> Mapping[str, Any]:
    if recipe is None or isinstance(recipe, Mapping):
        return recipe or {}
    try:
        return read_recipe(recipe)
    except ConfigError as error:
        if isinstance(reason := error.__cause__, MarkedYAMLError) and reason.problem_mark is not None:
            line, why = reason.problem_mark.line + 1, reason.problem or "it ends too early"
            raise ConfigError(f"recipe {recipe}, line {line}, is no YAML: {why}") from reason
        raise


def look(dataset: Dataset) -> Seen:
    """Looks at a few images that are spread over a data set."""
    shapes = []
    for index in range(0, len(dataset), max(len(dataset) // _LOOKED_AT, 1)):
        try:
            shapes.append(dataset.read(index).shape)
        except BrokenImage:  # packing counts and names it
            continue
    if not shapes:
        return Seen(0, 0, grey=False)
    heights, widths = (sorted(shape[side] for shape in shapes) for side in (1, 2))
    return Seen(heights[len(shapes) // 2], widths[len(shapes) // 2], grey=all(shape[0] == 1 for shape in shapes))


def _fresh(
    config: TrainConfig, splits: Splits, seen: Seen, notes: list[str], *, named: bool
) -> tuple[TrainConfig, Backbone]:
    """A model without weights for the data, and the config that names it."""
    options = {"num_classes": len(classes_of(config, splits)), **config.options}
    size = config.image_size
    if not named and 0 < max(seen.height, seen.width) <= _SMALL:
        config = change(config, {"model": _FOR_SMALL})
        size = size or (max(seen.height // 4, 2) * 4, max(seen.width // 4, 2) * 4)
        notes.append(f"images are about {seen.height} x {seen.width} pixels: {_FOR_SMALL}, a token for 4 x 4 of them")
    elif not named:
        notes.append(f"no model was named: {config.model}, the smallest of the usual ones")
    if size is not None:
        options["image_size"] = size
    if seen.grey and "channels" not in options:
        options["channels"] = 1
        notes.append("all images looked at are grey: the model takes one channel")
    resolve(config.model)
    return config, create(config.model, **options)


def read_plan(
    folder: Path,
    *,
    data: Source | None = None,
    teacher: Teacher | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Plan:
    """The plan of a run that was begun in a folder, to go on with it."""
    file = folder / "run.json"
    if not file.is_file():
        raise TrainingError(f"{folder} holds no run to resume: there is no {file.name} in it")
    try:
        about = json.loads(file.read_text())
        recipe, model = about["recipe"], about["model"]
        wanted, taught = data or about["source"], teacher or about["teacher"]
    except (ValueError, KeyError) as error:
        raise TrainingError(f"{file} is damaged: {error}") from error
    if wanted is None or (taught is None and about["taught"]):
        raise TrainingError(f"{folder} was trained on data or by a teacher that has no name; give it again to resume")
    splits = wanted if isinstance(wanted, Splits) else open_data(wanted, val=about["val"], seed=recipe["seed"])
    return Plan(
        config=change(change(TrainConfig(), recipe), changes or {}),
        data=splits,
        source=about["source"],
        model=model,
        start=about["start"],
        teacher=taught,
        notes=tuple(about["notes"]),
    )


def plan_to_dict(plan: Plan, *, val: str | Path | float | None) -> dict[str, Any]:
    """What run.json says, so that `read_plan` finds it again."""
    return {
        "recipe": to_dict(plan.config),
        "model": plan.model,
        "source": plan.source,
        "learned": None if plan.source is None else plan.data.train.fingerprint,
        "val": str(val) if isinstance(val, Path) else val,
        "start": plan.start,
        "teacher": str(plan.teacher) if isinstance(plan.teacher, str | Path) else None,
        "taught": plan.teacher is not None,
        "classes": list(plan.classes),
        "multi_label": plan.data.train.multi_label,
        "notes": list(plan.notes),
    }
