"""Which preprocessing some weights were trained with: the weights say so, or the files beside them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from vitrail.config import from_dict, to_dict
from vitrail.data.preprocess import Preprocess
from vitrail.errors import CheckpointError
from vitrail.models.checkpoint.processors import read_processor
from vitrail.strict_json import from_json, read_json

Size = tuple[int, int]

PROCESSOR = "preprocessor_config.json"  # where Hugging Face keeps it
_CROP_MODES = {"center": "crop", "squash": "squash", "border": "pad"}  # timm's crop_mode and our resize


def read_preprocess(path: Path, *, image_size: Size | None = None) -> Preprocess | None:
    """The preprocessing of a weight file, or of a folder with one; None where no file describes it.

    Read from the weights' own header, then timm's or our config.json, then Hugging Face's preprocessor_config.json.
    `image_size` is that of the model, where it may differ from the file's.
    """
    folder = path if path.is_dir() else path.parent
    found = _of_ours(_header(path))
    for name, read in (("config.json", _of_config), (PROCESSOR, _of_processor)):
        file = folder / name
        if found is not None or not file.is_file():
            continue
        try:
            found = read(read_json(file), folder, image_size)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise CheckpointError(f"cannot read from {file} how images are preprocessed: {error}") from error
    return found if found is None or image_size is None else replace(found, image_size=image_size)


def for_timm(config: Mapping[str, Any], preprocess: Preprocess) -> Mapping[str, Any]:
    """A config.json of timm, completed with the preprocessing."""
    mean, std = map(list, preprocess.statistics)
    modes = {ours: theirs for theirs, ours in _CROP_MODES.items()} | {"window": "center"}
    own = {
        "mean": mean,
        "std": std,
        "crop_pct": preprocess.crop,
        "crop_mode": modes[preprocess.resize],
        "interpolation": preprocess.interpolation,
    }
    return {**config, "pretrained_cfg": {**config.get("pretrained_cfg", {}), **own}}


def for_ours(preprocess: Preprocess | None) -> Mapping[str, Any] | None:
    """What our own config.json says."""
    return None if preprocess is None else to_dict(preprocess)


def _header(path: Path) -> Mapping[str, Any]:
    """What `save` wrote into a weight file; empty where another project wrote it."""
    file = path / "model.safetensors" if path.is_dir() else path
    if file.suffix != ".safetensors" or not file.is_file():
        return {}
    try:
        with safe_open(file, framework="pt") as opened:
            text = (opened.metadata() or {}).get("vitrail", "")
        found = from_json(text.partition(" ")[2] or "{}")
    except (SafetensorError, ValueError):  # whoever loads the weights says what is wrong with them
        return {}
    except (OSError, RuntimeError) as error:  # of the machine: without an error, images would be normalised wrongly
        raise CheckpointError(f"{file} cannot be read: {str(error).splitlines()[0]}") from error
    return found if isinstance(found, Mapping) else {}


def _of_config(about: Mapping[str, Any], folder: Path, image_size: Size | None) -> Preprocess | None:
    return _of_ours(about) if about.get("library") == "vitrail" else _of_timm(about, image_size)


def _of_ours(about: Mapping[str, Any]) -> Preprocess | None:
    """Ours; files of earlier versions hold mean and std alone."""
    if about.get("preprocess"):
        return from_dict(Preprocess, about["preprocess"])
    old = about.get("normalisation")
    return None if old is None else _plain(old["mean"], old["std"], about.get("config") or {})


def _of_timm(about: Mapping[str, Any], image_size: Size | None) -> Preprocess | None:
    """A config.json of timm has it in `pretrained_cfg`; those of its first hub models have it at the top.

    timm tests some models at a larger size than it trains them at: that crop is taken where the size is asked for.
    """
    own = about.get("pretrained_cfg") or about
    if not own.get("mean") or not own.get("std"):
        return None
    channels, *size = own.get("input_size") or (3, 224, 224)
    share = own.get("crop_pct") or 0.875
    if own.get("test_input_size") and image_size == tuple(own["test_input_size"][1:]):
        size, share = own["test_input_size"][1:], own.get("test_crop_pct") or share
    resize = _CROP_MODES[own.get("crop_mode") or "center"]
    # timm resizes to a rectangle with bilinear filters, whatever the file says.
    rectangle = resize == "crop" and size[0] != size[1]
    return _from_dict(
        image_size=size,
        channels=channels,
        mean=own["mean"],
        std=own["std"],
        crop=share,
        resize=resize,
        interpolation="bilinear" if rectangle else own.get("interpolation") or "bicubic",
    )


def _of_processor(about: Mapping[str, Any], folder: Path, image_size: Size | None) -> Preprocess | None:
    beside = folder / "config.json"
    config = read_json(beside) if beside.is_file() else {}
    return read_processor(about, str(config.get("model_type", "")))


def _plain(mean: Any, std: Any, config: Mapping[str, Any]) -> Preprocess:
    """Our usual preprocessing with a mean and std, for the images of a model's config."""
    known = {key: config[key] for key in ("image_size", "channels") if key in config}
    return _from_dict(**{"channels": max(len(mean), len(std)) if len(mean) > 1 else 3} | known, mean=mean, std=std)


def _from_dict(**values: Any) -> Preprocess:
    return from_dict(Preprocess, values)
