"""What a run will be, decided before its first step: data, task, model, sizes, batch; each choice with its reason."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from yaml.error import MarkedYAMLError

from vitrail.config import from_dict, split_names, to_dict
from vitrail.data.augment.augmentation import MixConfig
from vitrail.data.dataset import Splits
from vitrail.data.feeds.feed import ImageSet
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.table import Wanted
from vitrail.data.targets import Schema
from vitrail.data.targets.target import Target
from vitrail.errors import ConfigError, HeadNotice, ResampledNotice, TrainingError
from vitrail.hardware import device as choose_device
from vitrail.layers.lora import add_lora
from vitrail.models.backbone import Backbone, BackboneConfig
from vitrail.models.checkpoint.vitrail import describe_model
from vitrail.models.registry import FAMILIES, build, is_known
from vitrail.packaged import NAME as PACKAGED
from vitrail.recipes import read_recipe
from vitrail.runs.record import FILE, VERSION, Record
from vitrail.runs.trained import open_model
from vitrail.strict_json import from_json, to_json
from vitrail.tasks.task import Task, TaskConfig
from vitrail.training.config import FREE, TrainConfig, change
from vitrail.training.first_dense import first_dense, over
from vitrail.training.first_model import FOR_SMALL, SMALL, Sampled, fresh_model, sample
from vitrail.training.first_try import first_try_for
from vitrail.training.freeze import freeze_until, trainable
from vitrail.training.public_start import AUTO, PublicStart, public_start
from vitrail.training.start import (
    BORROWED,
    FOR_LORA,
    FOR_PROBE,
    changes_weights,
    check_weights,
    licence_of,
    loaded,
    model_name,
    preprocess_of,
    with_cells,
    with_options,
)
from vitrail.training.started_head import copy_head, with_head
from vitrail.training.task_choice import Spec, TaskChoice, choose_task, open_for_task, split_spec

Source = str | Path | Splits
Teacher = str | Path | nn.Module

_RANDOM = "frozen layers keep random weights, since there are none to start from; pass --from"
_STEPS = 16  # of an epoch at least, where no batch size was given
_LEAST_BATCH = 16


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that makes a run what it is; `build_task` gives fresh, equal objects each time."""

    config: TrainConfig
    data: Splits
    schema: Schema  # the targets that the task learns from
    preprocess: Preprocess
    model: Mapping[str, Any]  # family and config, as plain values
    source: str | None = None  # what the data were opened by, where it was a name
    wanted: Wanted = Wanted()
    start: str | None = None  # the weights that a fresh task begins with
    teacher: Teacher | None = None
    notes: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()  # other image sizes of a linear head: folds of the training images choose
    weights: Backbone | None = field(default=None, repr=False)  # those of `start`, read once

    @property
    def task(self) -> TaskConfig:
        """The task's config."""
        assert self.config.task is not None  # noqa: S101  (a plan has decided)
        return self.config.task

    @property
    def backbone_config(self) -> BackboneConfig:
        """The config of the model."""
        return from_dict(FAMILIES[self.model["family"]].config, self.model["config"])

    def identity(self, train: ImageSet) -> dict[str, Any]:
        """What must be equal for a run to be resumed."""
        recipe = {name: value for name, value in to_dict(self.config).items() if name not in FREE}
        model = {**self.model, "config": to_dict(self.backbone_config)}  # also options that are newer than the run
        about = {"recipe": recipe, "model": model, "data": {"images": len(train), "checksum": train.checksum()}}
        plain: dict[str, Any] = from_json(to_json({**about, "preprocess": to_dict(self.preprocess)}))
        return plain

    def build_task(self, *, blank: bool = False) -> Task:
        """A fresh task; `blank` without the weights it starts from, where others are about to replace them."""
        torch.manual_seed(self.config.seed)
        backbone = self.bare(blank=blank)
        if self.config.lora is not None:
            add_lora(backbone, self.config.lora)
        if self.config.freeze_until is not None:
            freeze_until(backbone, self.config.freeze_until)
        task = self.task.build(backbone, self.schema)
        copy_head(task, None if blank else self.start)
        task.fit(self.data.train.targets)
        if self.teacher is not None:
            self._teach(task, self.teacher)
        return task

    def _teach(self, task: Task, teacher: Teacher) -> None:
        """Gives a task its teacher, with its own preprocessing where the files beside its weights have it."""
        if isinstance(teacher, nn.Module):
            task.learn_from(teacher)
            return
        opened = open_model(teacher)
        kinds = {target.kind for target in self.schema.values()}
        theirs = {target.kind for target in opened.task.schema.values()}
        if opened.record is not None and kinds != theirs:
            raise ConfigError(
                f"the teacher {teacher} learned from {', '.join(sorted(theirs))}; the data have "
                f"{', '.join(sorted(kinds))}"
            )
        known = opened.preprocess if opened.preprocess_known else None
        task.learn_from(
            opened.backbone,
            preprocess=known,
            student=None if known is None else self.preprocess,
            state=opened.task.state(),
        )

    def bare(self, *, blank: bool = False) -> Backbone:
        """The model alone, plain linear maps throughout."""
        backbone = build(FAMILIES[self.model["family"]], self.backbone_config)
        if self.start is not None and not blank:
            weights = self.weights or self._loaded(self.start)
            backbone.load_state_dict(weights.state_dict())
        backbone.preprocess = self.preprocess
        return backbone

    def _loaded(self, start: str) -> Backbone:
        with warnings.catch_warnings():
            for notice in (HeadNotice, ResampledNotice):  # said when the plan was made
                warnings.simplefilter("ignore", notice)
            name = self.config.model if is_known(self.config.model) else None
            return loaded(start, self.config, self.task.num_outputs(self.schema), model=name)

    def record(self, *, val: str | Path | float | None, command: str, environment: Mapping[str, Any]) -> Record:
        """The content of run.json."""
        return Record(
            recipe=to_dict(self.config),
            model=self.model,
            task=self.task.stored(),
            schema=self.schema,
            preprocess=self.preprocess,
            source=self.source,
            val=str(val) if isinstance(val, Path) else val,
            wanted=self.wanted,
            learned=None if self.source is None else self.data.train.fingerprint,
            start=self.start,
            teacher=str(self.teacher) if isinstance(self.teacher, str | Path) else None,
            has_teacher=self.teacher is not None,
            notes=self.notes,
            command=command,
            environment=environment,
            licence=licence_of(self.start),
        )


def make_plan(
    data: Source, *, model: str | None = None, task: TaskChoice | None = None, label: str | Sequence[str] | None = None,
    recipe: str | Path | Mapping[str, Any] | None = None, start: str | Path | None = None,
    teacher: Teacher | None = None, val: str | Path | float | None = None, group: str | None = None,
    fold: tuple[int, int] | None = None, device: torch.device | None = None, changes: Mapping[str, Any] | None = None,
) -> Plan:  # fmt: skip
    """A plan for new data and the device of the run, by default a GPU if there is one; decides what was left open."""
    changes = {**(changes or {}), **({} if model is None else {"model": model})}
    given, changes, spec = split_spec({} if recipe is None else _recipe(recipe), changes, task=task)
    named, base = "model" in {**given, **changes}, _of_recipe(recipe, given)
    borrowed = start is None and not named and changes_weights(change(base, changes))
    start = PACKAGED if borrowed else start
    tuned = recipe is None and start not in (None, AUTO)  # what auto begins with is not known yet
    config, spec = _tuned(changes, spec) if tuned else (change(base, changes), spec)
    check_weights(config, start)
    like = Wanted(split_names(label), group=group, fold=fold)
    splits, wanted = open_for_task(data, spec, like=like, val=val, seed=config.seed)
    seen, left_open = sample(splits.train), recipe is None and start is None and teacher is None and not named
    first = _begins(splits, seen, {**given, **changes}, spec, start, device) if left_open or start == AUTO else None
    if first is not None:
        start, changes = first.start, over(first.changes, changes)
        config, spec = _tuned(changes, spec) if recipe is None and start is not None else (change(base, changes), spec)
        spec = spec._replace(defaults={**spec.defaults, **first.task})
    chosen, notes = with_head(*choose_task(spec, splits, has_teacher=teacher is not None), spec, start)
    schema, augment, mix, adapted = chosen.adapt(chosen.learns(splits.train.schema), config.augment, config.mix)
    chosen, decided = chosen.decided(schema, splits.train.targets)
    config = replace(config, task=chosen, augment=augment, mix=mix)
    notes = [*splits.notes, *notes, *adapted, *decided, *([] if first is None else [first.note])]
    asked = {**given, **changes}
    config = _with_mix(config, schema, notes, asked=any(key.split(".")[0] == "mix" for key in asked))
    config = config if "batch_size" in asked else _with_steps(config, len(splits.train), notes)
    outputs = chosen.num_outputs(schema)
    if start is None:
        config, backbone = fresh_model(config, outputs, seen, notes, named=named)
    else:
        config, backbone = _started(config, start, (len(splits.train), outputs), notes, changes, borrowed=borrowed)
    plan = Plan(
        config=config,
        data=splits,
        schema=schema,
        preprocess=preprocess_of(config, backbone, notes, started=start is not None),
        model={name: value for name, value in describe_model(backbone).items() if name in ("family", "config")},
        source=None if isinstance(data, Splits) else str(data),
        wanted=wanted,
        start=None if start is None else str(start),
        teacher=teacher,
        weights=None if start is None else backbone,
    )
    notes += [*_resized(plan, seen, fresh=start is None, asked=first is None), *_warmed_up(config), *_checked(plan)]
    return replace(plan, notes=tuple(notes), sizes=() if first is None else first.sizes)


def _begins(  # noqa: PLR0917  (all of one choice)
    splits: Splits, seen: Sampled, changes: Mapping[str, Any], spec: Spec, start: str | Path | None,
    device: torch.device | None,
) -> PublicStart | None:  # fmt: skip
    """The weights for data where none were named: public ones with --from auto, else what measured sets suggest."""
    (task, _), where = choose_task(spec, splits, has_teacher=False), choose_device(device)
    if start == AUTO:
        return public_start(splits.train, seen, changes, task, device=where)
    if (dense := first_dense(splits.train, seen, changes, task, device=where)) is not None:
        return PublicStart(dense.start, dense.changes, dense.note, dense.task)
    if (first := first_try_for(splits.train, seen, changes, task, device=where)) is None:
        return None
    return PublicStart(first.setting.start, first.setting.changes, first.note, sizes=first.sizes)


def _started(
    config: TrainConfig, start: str | Path, size: tuple[int, int], notes: list[str], changes: Mapping[str, Any], *,
    borrowed: bool,
) -> tuple[TrainConfig, Backbone]:  # fmt: skip
    """A model with the weights that a run starts from, and the config that names it; `size` is images and outputs."""
    (images, outputs), model = size, changes.get("model")
    backbone = loaded(start, config, outputs, model=model)
    if (celled := with_cells(config, backbone, images, outputs)) != config:
        config, backbone = celled, with_options(backbone, celled, start)
    config = change(config, {"model": model_name(backbone, start)})
    known = f"; licence of the weights: {licence}" if (licence := licence_of(start)) else ""
    notes.append(BORROWED if borrowed else f"starts from the weights of {start} ({config.model}{known})")
    return config, backbone


def _check_sampling(config: TrainConfig) -> None:
    """Refuses to correct for the frequency of classes twice, or by a sampling that a linear head does not have."""
    if config.sampling == "balanced" and config.probe is not None:
        raise ConfigError(
            "sampling=balanced does not fit probe=linear, which learns from each image once; weight classes instead "
            "(task.class_weights=inverse or task.loss=logit_adjusted)"
        )
    if config.sampling == "balanced" and config.task is not None and config.task.reweights:
        raise ConfigError(
            "sampling=balanced and the loss (task.class_weights, task.loss) both correct for the frequency of classes; "
            "leave out one of them"
        )


def _checked(plan: Plan) -> list[str]:
    """Builds the task once, so that what cannot learn is refused before any image is read; and notes on it."""
    _check_sampling(plan.config)
    task = plan.build_task(blank=True)
    notes = []
    if plan.config.sampling == "balanced":
        power = plan.config.sampling_power
        share = "equal" if power == 1.0 else f"proportional to its number of images to the power of {1 - power:g}"
        notes.append(
            f"balanced sampling: the share of each class (of numbers: range) in an epoch is {share} (sampling)"
        )
    if plan.teacher is not None:
        name = type(plan.teacher).__name__ if isinstance(plan.teacher, nn.Module) else plan.teacher
        notes.append(f"learns from the teacher {name} too ({plan.task})")
    if changes_weights(plan.config):
        notes += [str(trainable(task)), *([_RANDOM] if plan.start is None else [])]
    return notes


def _resized(plan: Plan, seen: Sampled, *, fresh: bool, asked: bool) -> list[str]:
    """What becomes of the images for a model, and whether they are too small for it."""
    height, width = plan.preprocess.image_size
    colour = (
        "in colour" if plan.preprocess.channels > 1 else "grey" if fresh or seen.grey else "grey, as the weights were"
    )
    notes = [f"images are resized to {height} x {width}, {colour}"]
    chosen = plan.start is not None and not asked  # by what was measured
    if not chosen and seen.height and max(height, width) > 1.5 * max(seen.height, seen.width):
        small = fresh and max(seen.height, seen.width) <= SMALL
        which = f"{FOR_SMALL}, the default for images of that size," if small else "a model for smaller images"
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
    size = max(1 << (max(images // _STEPS, 1).bit_length() - 1), min(_LEAST_BATCH, images))
    if size >= config.batch_size:
        return config
    notes.append(f"there are only {images:,} training images: batch_size is {size}, not {config.batch_size}")
    return change(config, {"batch_size": size})


def _with_mix(config: TrainConfig, schema: Schema, notes: list[str], *, asked: bool) -> TrainConfig:
    """Targets that cannot be mixed: refused where mixing was asked for, otherwise mixing is off, with a note."""
    fixed = [target.kind for target in schema.values() if type(target).mix is Target.mix]
    mixing = config.mix.mixup or config.mix.cutmix or config.mix.patch_mixup
    if not mixing or (schema and not fixed):
        return config
    why = f"targets of kind {' and '.join(fixed)} cannot be mixed" if fixed else "this task has no targets to mix"
    if asked:
        raise ConfigError(f"{why}: leave out mixup, cutmix and patch_mixup")
    notes.append(f"Mixup and CutMix are off: {why}")
    return replace(config, mix=MixConfig())


def _of_recipe(recipe: str | Path | Mapping[str, Any] | None, given: Mapping[str, Any]) -> TrainConfig:
    """The config of a recipe; what is wrong with it is said with the name of its file."""
    try:
        return change(TrainConfig(), given)
    except ConfigError as error:
        if recipe is None or isinstance(recipe, Mapping) or str(recipe) in str(error):
            raise
        raise ConfigError(f"recipe {recipe}: {error}") from error


def _tuned(changes: Mapping[str, Any], spec: Spec) -> tuple[TrainConfig, Spec]:
    """How weights are fine-tuned, or probed, where no recipe was named."""
    if changes.get("probe") is not None:
        return change(change(TrainConfig(), FOR_PROBE), changes), spec
    given, _, tuned = split_spec(_recipe("finetune"))
    plain = _of_recipe("finetune", given)
    config = change(change(plain, FOR_LORA) if changes.get("lora") is not None else plain, changes)
    return config, spec._replace(defaults=tuned.defaults)


def _recipe(recipe: str | Path | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(recipe, Mapping):
        return recipe
    try:
        return read_recipe(recipe)
    except ConfigError as error:
        if isinstance(reason := error.__cause__, MarkedYAMLError) and reason.problem_mark is not None:
            line, why = reason.problem_mark.line + 1, reason.problem or "it ends too early"
            raise ConfigError(f"recipe {recipe}, line {line}: not valid YAML: {why}") from reason
        raise


def read_plan(
    folder: Path,
    *,
    data: Source | None = None,
    teacher: Teacher | None = None,
    task: TaskChoice | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Plan:
    """The plan of a run in a folder, to resume it."""
    if not (folder / FILE).is_file():
        raise TrainingError(f"{folder} is not a run to resume: it has no {FILE}")
    record = Record.read(folder)
    if record.version < VERSION:
        raise TrainingError(
            f"{folder} was started by an earlier version of vitrail and cannot be resumed; start a new run from its "
            f"weights: --from {folder}"
        )
    wanted, named = data or record.source, teacher or record.teacher
    if wanted is None or (named is None and record.has_teacher):
        raise TrainingError(f"{folder} was trained on data or by a teacher without a name; pass it again to resume")
    recipe, fresh, spec = split_spec(record.recipe, changes, task=task)
    config = change(change(TrainConfig(), recipe), fresh)
    splits, _ = open_for_task(wanted, spec, like=record.wanted, val=record.val, seed=record.seed)
    chosen, _ = choose_task(spec, splits, has_teacher=named is not None)
    return Plan(
        config=replace(config, task=chosen),
        data=splits,
        schema=record.schema,
        preprocess=record.preprocess,
        model=record.model,
        source=record.source,
        wanted=record.wanted,
        start=record.start,
        teacher=named,
        notes=record.notes,
    )
