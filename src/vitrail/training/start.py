"""The weights that a run starts from: those that were named, those that ship with vitrail, or none."""

import warnings
from pathlib import Path

from vitrail.config import apply
from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError, HeadNotice
from vitrail.models.backbone import Backbone
from vitrail.models.checkpoint import load
from vitrail.models.checkpoint.config_match import check_match, structure
from vitrail.models.checkpoint.hub import card_licence
from vitrail.models.registry import build, family_of, is_known, name_of, resolve
from vitrail.packaged import LICENCE, NAMES
from vitrail.packaged import NAME as PACKAGED
from vitrail.runs.paths import checkpoint_path
from vitrail.runs.record import Record, is_run
from vitrail.training.config import TrainConfig, change
from vitrail.training.started_head import headed_backbone, headed_path

_HEAD = "head."  # names of its weights begin so
BORROWED = (
    "no model and no weights were named: starts from those that ship with vitrail, a vit32_conv trained on "
    "photographs of 32 x 32 pixels; where detail matters, name others (--from)"
)
# Low-rank updates start at zero and are few, so they take a higher rate, and the same in all layers.
FOR_LORA = {"optimiser": {"lr": 3e-3, "layer_decay": None}}


# A head that is fitted at once to what the model sees of each image as it is.
FOR_PROBE = {
    "epochs": 1,
    "batch_size": 16,  # four times as many are validated at once
    "freeze_until": "head",
    "schedule": {"warmup_epochs": 0.0},
    "augment": {"crop": "none", "flip": False},
}

# A linear probe also reads the means of 3 x 3 cells where a model can give them, and folds find them of use: up to so
# many images times outputs, from which on fitting it would take minutes. Fewer outputs count as eight, since features
# need memory for any number of them: 30 kB an image.
CELLS, MOST_FOR_CELLS, _LEAST_OUTPUTS = 3, 200_000, 8


def with_cells(config: TrainConfig, backbone: Backbone, images: int, outputs: int) -> TrainConfig:
    """The config of a linear probe that reads the cells of an image, too, unless its options say otherwise.

    With too many images it reads none, also where the model that it starts from does.
    """
    if config.probe is None or backbone.width_of_means is None or "pool_cells" in config.options:
        return config
    count = CELLS if images * max(outputs, _LEAST_OUTPUTS) <= MOST_FOR_CELLS else 1
    if count == getattr(backbone.config, "pool_cells", 1):
        return config
    return change(config, {"options": {**config.options, "pool_cells": count}})


def changes_weights(config: TrainConfig) -> bool:
    """Whether a run leaves most of a model as it is, which makes sense only of one that was trained."""
    return config.lora is not None or config.freeze_until is not None or config.probe is not None


def check_weights(config: TrainConfig, start: str | Path | None) -> None:
    """Refuses small changes to a large untrained model; its first layers alone may stay as they were drawn."""
    if config.lora is not None and start is None:
        raise ConfigError(
            f"lora updates trained weights, and a new {config.model} has none; name some with --from (start= in "
            f"Python): a run, a file, hf-hub:owner/name, or {PACKAGED}"
        )


def loaded(start: str | Path, config: TrainConfig, num_outputs: int, *, model: str | None) -> Backbone:
    """A model with the weights of a checkpoint and a head for the task, its other options changed where asked.

    The file says which model it is; a `model` that is named as well must be the same.
    """
    if (path := headed_path(start)) is not None:
        backbone = headed_backbone(path, config.image_size)
        if model is not None:
            check_match(backbone.config, resolve(model)[1], by=f"model={model!r}", path=path)
        if num_outputs:
            backbone.reset_head(num_outputs)
    else:
        backbone = load(checkpoint_path(start), model=model, image_size=config.image_size, num_classes=num_outputs)
    return with_options(backbone, config, start)


def with_options(backbone: Backbone, config: TrainConfig, start: str | Path) -> Backbone:
    """A model with weights, its options changed where asked; a head that then has another width is new."""
    if not config.options:
        return backbone
    changed = build(family_of(backbone), apply(backbone.config, config.options))
    state, own = backbone.state_dict(), changed.state_dict()
    if any(own[name].shape != state[name].shape for name in own.keys() & state.keys() if name.startswith(_HEAD)):
        state |= {name: tensor for name, tensor in own.items() if name.startswith(_HEAD)}
        if config.probe is None and not config.fit_head:  # which fit a head in any case
            text = f"options ({', '.join(config.options)}) change the width of the head: it is a new, untrained one"
            warnings.warn(text, HeadNotice, stacklevel=2)
    try:
        changed.load_state_dict(state)
    except RuntimeError as error:
        names = ", ".join(config.options)
        raise ConfigError(f"options ({names}) do not fit the weights of {start}") from error
    changed.preprocess = backbone.preprocess
    return changed


def model_name(backbone: Backbone, start: str | Path) -> str:
    """The name of a model with weights: that of its size, else that of the run that left them, else its family's."""
    path = checkpoint_path(start)
    named = str(Record.read(path).recipe.get("model")) if is_run(path) else ""
    same = is_known(named) and structure(resolve(named)[1]) == structure(backbone.config)
    return name_of(backbone.config) or (named if same else family_of(backbone).name)


def licence_of(start: str | Path | None) -> str | None:
    """The licence of the weights that a run starts from, which is that of its own; None where it is not known."""
    if start is None or start in NAMES:
        return None if start is None else LICENCE
    return Record.read(start).licence if is_run(start) else card_licence(start)


def preprocess_of(config: TrainConfig, backbone: Backbone, notes: list[str], *, started: bool) -> Preprocess:
    """The preprocessing of the recipe, else that of the files beside the weights, else the usual one."""
    size, channels = backbone.config.image_size, backbone.config.channels
    usual = {} if config.task is None else config.task.preprocess
    found = apply(Preprocess(image_size=size, channels=channels), usual)
    if started and backbone.preprocess is not None:
        found = apply(backbone.preprocess, {"image_size": size} | dict(usual))
        notes.append(f"images are preprocessed as for these weights: {found}")
    elif started:
        notes.append("no file beside the weights says how images were normalised: -1 to 1 is assumed (preprocess.mean)")
    if fixed := [name for name in ("image_size", "channels") if name in config.preprocess]:
        raise ConfigError(f"preprocess.{fixed[0]} follows from the model; set image_size or options.channels instead")
    return apply(found, config.preprocess, "preprocess")
