"""What pixels were brought to when some weights were made, as the files beside the weights tell it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.data.augment import AugmentConfig
from vitrail.errors import CheckpointError
from vitrail.models.checkpoint.hub import locate
from vitrail.tasks.distill import Normalisation

_HALF = (0.5,)  # what a config that names none means


def normalisation_of(source: str | Path) -> Normalisation | None:
    """The mean and deviation of a run, a timm or a Hugging Face checkpoint; None where no file tells them."""
    place = locate(source)
    folder = place if place.is_dir() else place.parent
    for name, told in (("run.json", _of_run), ("config.json", _of_timm), ("preprocessor_config.json", _of_processor)):
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


def of_config(config: AugmentConfig) -> Normalisation:
    """The normalisation that a config asks for."""
    return Normalisation(config.mean or _HALF, config.std or _HALF)


def _of_run(about: Mapping[str, Any]) -> Normalisation | None:
    treatment = about["recipe"]["augment"]
    return _numbers(treatment["mean"] or _HALF, treatment["std"] or _HALF)


def _of_timm(about: Mapping[str, Any]) -> Normalisation | None:
    """A config.json of timm has them in `pretrained_cfg`; those of its first hub models have them at the top."""
    told = about.get("pretrained_cfg") or about
    return _numbers(told["mean"], told["std"]) if told.get("mean") and told.get("std") else None


def _of_processor(about: Mapping[str, Any]) -> Normalisation | None:
    """What Hugging Face's image processors do after they have brought pixels to 0 to 1."""
    if not about.get("do_normalize", True):
        return Normalisation((0.0,), (1.0,))
    if not about.get("image_mean") or not about.get("image_std"):
        return None
    return _numbers(about["image_mean"], about["image_std"])


def _numbers(mean: Any, std: Any) -> Normalisation:
    found = Normalisation(tuple(float(value) for value in mean), tuple(float(value) for value in std))
    if min(found.std) <= 0 or len(found.mean) != len(found.std):
        raise ValueError(f"mean {found.mean}, deviation {found.std}")
    return found
