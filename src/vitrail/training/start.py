"""The weights that a run starts from: those that were named, those that ship with vitrail, or none."""

import contextlib
import json
from pathlib import Path

from vitrail.config import apply
from vitrail.errors import ConfigError
from vitrail.models.backbone import Backbone
from vitrail.models.checkpoint import load
from vitrail.models.checkpoint.agreement import structure
from vitrail.models.registry import build, family_of, is_known, name_of, resolve
from vitrail.packaged import NAME as PACKAGED
from vitrail.training.config import TrainConfig, change
from vitrail.training.normalisation import normalisation_of
from vitrail.training.trained import place_of

BORROWED = (
    "no model and no weights were named: starts from those that ship with vitrail, a vit32_conv that knows "
    "photographs of 32 x 32 pixels; where detail matters, name others (--from)"
)
# What fine-tuning by low-rank updates does otherwise: these begin at nothing and are few, so they bear a higher rate,
# and those near the image no lower one.
FOR_LORA = {"optimiser": {"lr": 3e-3, "layer_decay": None}}


def changes_weights(config: TrainConfig) -> bool:
    """Whether a run leaves most of a model as it is, which makes sense only of one that has learned."""
    return config.lora is not None or config.freeze_until is not None


def check_weights(config: TrainConfig, start: str | Path | None) -> None:
    """Refuses small changes to a large model that knows nothing; its first layers alone may stay as they were drawn."""
    if config.lora is not None and start is None:
        raise ConfigError(
            f"lora changes weights that have learned, and those of a new {config.model} have not; name some with "
            f"--from (start= in Python): a run, a file, hf-hub:owner/name, or {PACKAGED}"
        )


def loaded(start: str | Path, config: TrainConfig, num_classes: int, *, model: str | None) -> Backbone:
    """A model with the weights of a checkpoint and a head for the data, its other options changed where asked.

    Weights say what model they are of; a `model` that is named besides must be that one.
    """
    backbone = load(place_of(start), model=model, image_size=config.image_size, num_classes=num_classes)
    if not config.options:
        return backbone
    changed = build(family_of(backbone), apply(backbone.config, config.options))
    try:
        changed.load_state_dict(backbone.state_dict())
    except RuntimeError as error:
        names = ", ".join(config.options)
        raise ConfigError(f"options ({names}) change what the weights of {start} were made for") from error
    return changed


def called(backbone: Backbone, start: str | Path) -> str:
    """What a model with weights is called: as its size, else as in the run that left them, else as its family."""
    told = ""
    with contextlib.suppress(OSError, ValueError, KeyError):
        told = json.loads(Path(place_of(start), "run.json").read_text(encoding="utf-8"))["recipe"]["model"]
    true = is_known(told) and structure(resolve(told)[1]) == structure(backbone.config)
    return name_of(backbone.config) or (told if true else family_of(backbone).name)


def normalised(config: TrainConfig, start: str | Path, notes: list[str]) -> TrainConfig:
    """Pixels as the weights know them, where the recipe does not say and the files beside the weights do."""
    if config.augment.mean is not None or config.augment.std is not None:
        return config
    found = normalisation_of(place_of(start))
    if found is None:
        notes.append("no file beside the weights tells how images were normalised: -1 to 1 is taken (augment.mean)")
        return config
    mean, std = (", ".join(f"{value:g}" for value in values) for values in found)
    notes.append(f"images are normalised as for these weights: mean {mean}; deviation {std}")
    return change(config, {"augment": found._asdict()})
