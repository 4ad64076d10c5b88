"""The name of a model in a title: its preset, or its size where options changed that."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from vitrail.errors import ConfigError, InputError
from vitrail.models.backbone import Backbone
from vitrail.profiling import sketch
from vitrail.report import show

_FROM_DATA = ("image_size", "channels", "num_classes")  # options that follow from the data


def name_model(
    preset: str, options: Mapping[str, Any], model: Backbone, head: nn.Module | None = None
) -> tuple[str, str]:
    """The name of a model, and a sentence on its options where they changed the size of its preset.

    `head` is what a task has beside the model, such as a detector.
    """
    beside = "" if head is None else f" with {type(head).__name__} of {show(_parameters(head), 'si')} parameters"
    changes = {name: value for name, value in options.items() if name not in _FROM_DATA}
    if not changes:
        return preset + beside, ""
    count, config = _parameters(model), model.config
    try:
        usual = sketch(preset, image_size=config.image_size, channels=config.channels, num_classes=config.num_classes)
    except (ConfigError, InputError):  # the preset cannot take such images
        usual = None
    if usual is not None and _parameters(usual) == count:
        return preset + beside, ""
    kind, listed = type(model).__name__, ", ".join(f"{name} {_text(value)}" for name, value in changes.items())
    return f"{kind} of {show(count, 'si')} parameters{beside}", f"The model is {preset} with {listed}."


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _text(value: Any) -> str:
    """An option's value in a sentence: the kind of a choice, with its other options in brackets."""
    if isinstance(value, Mapping):
        rest = ", ".join(f"{name} {_text(one)}" for name, one in value.items() if name != "kind")
        return " ".join(part for part in (str(value.get("kind", "")), f"({rest})" if rest else "") if part)
    if isinstance(value, list | tuple):
        return " and ".join(map(_text, value))
    return show(value)
