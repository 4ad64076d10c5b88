"""What pixels were brought to when some weights were made: the weights tell it, or the files beside them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from vitrail.errors import CheckpointError

Pixels = tuple[tuple[float, ...], tuple[float, ...]]  # mean and deviation, of each channel or one for all; 0 to 1

HALF = (0.5,)  # what a run that names none takes: pixels go from -1 to 1
PROCESSOR = "preprocessor_config.json"  # where Hugging Face keeps them


def find(place: Path) -> Pixels | None:
    """The mean and deviation of a file of weights or of a folder with some; None where nothing tells them."""
    folder = place if place.is_dir() else place.parent
    if (own := _of_ours(_header(place))) is not None:
        return own
    for name, told in (("run.json", _of_run), ("config.json", _of_config), (PROCESSOR, _of_processor)):
        file = folder / name
        if not file.is_file():
            continue
        try:
            found = told(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{file} is damaged, it does not tell how images are normalised: {error}") from error
        if found is not None:
            return found
    return None


def for_ours(pixels: Pixels | None) -> Mapping[str, Any] | None:
    """What our own config.json says."""
    return None if pixels is None else {"mean": list(pixels[0]), "std": list(pixels[1])}


def for_timm(config: Mapping[str, Any], pixels: Pixels, channels: int) -> Mapping[str, Any]:
    """A config.json of timm that tells it."""
    mean, std = map(list, by_channel(pixels, channels))
    return {**config, "pretrained_cfg": {**config.get("pretrained_cfg", {}), "mean": mean, "std": std}}


def for_processor(pixels: Pixels, channels: int, image_size: tuple[int, int]) -> Mapping[str, Any]:
    """The file that Hugging Face's image processors read."""
    mean, std = map(list, by_channel(pixels, channels))
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": image_size[0], "width": image_size[1]},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": std,
    }


def by_channel(pixels: Pixels, channels: int) -> Pixels:
    """The same with a number for each channel, as other projects want them."""
    mean, std = (values * channels if len(values) == 1 else values for values in pixels)
    return mean, std


def _header(place: Path) -> Mapping[str, Any]:
    """What `save` wrote into a file of weights; nothing where it is none of ours."""
    file = place / "model.safetensors" if place.is_dir() else place
    if file.suffix != ".safetensors" or not file.is_file():
        return {}
    try:
        with safe_open(file, framework="pt") as opened:
            text = (opened.metadata() or {}).get("vitrail", "")
        found = json.loads(text.partition(" ")[2] or "{}")
    except (SafetensorError, OSError, ValueError):  # whoever loads the weights says what is wrong with them
        return {}
    return found if isinstance(found, Mapping) else {}


def _of_run(about: Mapping[str, Any]) -> Pixels | None:
    treatment = about["recipe"]["augment"]
    return _numbers(treatment["mean"] or HALF, treatment["std"] or HALF)


def _of_config(about: Mapping[str, Any]) -> Pixels | None:
    return _of_ours(about) if about.get("library") == "vitrail" else _of_timm(about)


def _of_ours(about: Mapping[str, Any]) -> Pixels | None:
    told = about.get("normalisation")
    return None if told is None else _numbers(told["mean"], told["std"])


def _of_timm(about: Mapping[str, Any]) -> Pixels | None:
    """A config.json of timm has them in `pretrained_cfg`; those of its first hub models have them at the top."""
    told = about.get("pretrained_cfg") or about
    return _numbers(told["mean"], told["std"]) if told.get("mean") and told.get("std") else None


def _of_processor(about: Mapping[str, Any]) -> Pixels | None:
    """What Hugging Face's image processors do after they have brought pixels to 0 to 1."""
    if not about.get("do_normalize", True):
        return (0.0,), (1.0,)
    if not about.get("image_mean") or not about.get("image_std"):
        return None
    return _numbers(about["image_mean"], about["image_std"])


def _numbers(mean: Any, std: Any) -> Pixels:
    means, deviations = tuple(float(value) for value in mean), tuple(float(value) for value in std)
    if min(deviations) <= 0 or len(means) != len(deviations):
        raise ValueError(f"mean {means}, deviation {deviations}")
    return means, deviations
