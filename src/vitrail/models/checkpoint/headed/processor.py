"""What Hugging Face's processors of detectors, segmenters and depth models do to pictures."""

import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitrail.data.own_size import Edges, Near, OwnSize, Within
from vitrail.data.preprocess import Preprocess, Size
from vitrail.errors import CheckpointError
from vitrail.models.checkpoint.pixels import PROCESSOR
from vitrail.models.checkpoint.processors import RESAMPLE, Processor, statistics
from vitrail.strict_json import read_json

_MAX_SIDE = 2**12  # pixels of an image; a backbone has positions for all of it
_USUAL_RATIO = 4 / 3  # the width over the height of the one size, where each picture has a size of its own
_IMAGENET: dict[str, Any] = {"resample": 2, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
_EDGES = {"shortest_edge": 800, "longest_edge": 1333}
# What each class does where its file says nothing else.
_USUAL: Mapping[str, tuple[Processor, Mapping[str, int]]] = {
    "detr": (Processor(**_IMAGENET), _EDGES),
    "deformabledetr": (Processor(**_IMAGENET), _EDGES),
    "rtdetr": (Processor(**_IMAGENET, normalises=False), {"height": 640, "width": 640}),
    "segformer": (Processor(**_IMAGENET), {"height": 512, "width": 512}),
    "dpt": (Processor(), {"height": 384, "width": 384}),
    "eomt": (Processor(**_IMAGENET), {"shortest_edge": 640, "longest_edge": 640}),
}


@dataclass(frozen=True, kw_only=True)
class Processing:
    """How pictures become the input of a model.

    `preprocess` resizes all to one size: for training, artefacts and the service. With `own_size` the processor gives
    each picture a size of its own. A model that takes squares alone gets `windows` along the longer side, or the
    picture with a black margin right and below, where it is `padded`.
    """

    preprocess: Preprocess
    own_size: OwnSize | None = None
    windows: bool = False
    padded: bool = False


def read_processing(path: Path, image_size: Size | None = None) -> Processing:
    """The processing of a folder, or of a weight file; without preprocessor_config.json, the usual one of its model.

    With `image_size` all pictures are resized to that.
    """
    folder = path if path.is_dir() else path.parent
    about, config = _read(folder / PROCESSOR), _read(folder / "config.json")
    try:
        return _processing(about, config, image_size)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{folder / PROCESSOR}: {str(error)[:300]}") from error


def _processing(about: Mapping[str, Any], config: Mapping[str, Any], image_size: Size | None) -> Processing:
    kind = _kind(about, config)
    usual, size = _USUAL[kind]
    _check(about, kind)
    if not about and (side := config.get("image_size")):  # without a file: the size that the model was built for
        size = dict.fromkeys(size, side)
    own_size = _own_size(_sides(about.get("size", size), about), about, kind)
    fixed = image_size or _one_size(own_size, square=kind == "eomt")
    mean, std = statistics(about, usual, kind)
    if (resample := about.get("resample", usual.resample)) not in RESAMPLE:
        raise ValueError(f"resample = {resample!r} is not supported; it must be one of {list(RESAMPLE)}")
    preprocess = Preprocess(
        image_size=fixed,
        channels=config.get("num_channels", 3),
        mean=mean,
        std=std,
        resize="squash",
        interpolation=RESAMPLE[resample],  # type: ignore[arg-type]
        like="hf",
    )
    if isinstance(own_size, tuple) or image_size is not None:
        return Processing(preprocess=preprocess)
    windows = kind == "eomt" and bool(about.get("do_split_image"))
    if kind == "eomt" and isinstance(own_size, Edges):  # windows and squares have the shorter side of `size`
        own_size = replace(own_size, longest=None if windows else own_size.shortest)
    return Processing(preprocess=preprocess, own_size=own_size, windows=windows, padded=kind == "eomt" and not windows)


def _read(file: Path) -> Mapping[str, Any]:
    """A JSON file beside the weights; empty where there is none."""
    if not file.is_file():
        return {}
    try:
        about = read_json(file)
    except ValueError as error:
        raise CheckpointError(f"{file} is not valid JSON: {error}") from error
    return about if isinstance(about, dict) else {}


def _kind(about: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    named = str(about.get("image_processor_type") or about.get("feature_extractor_type") or "")
    kind = re.sub(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$", "", named).lower()
    kind = kind or str(config.get("model_type", "")).replace("_", "")
    if kind not in _USUAL:
        raise ValueError(f"the processor {named or kind!r} is not supported; allowed: {', '.join(_USUAL)}")
    return kind


def _check(about: Mapping[str, Any], kind: str) -> None:
    """ValueError for what a file may ask for and is not done here."""
    refused = ["pad_size", *(("do_center_crop", "do_pad") if kind == "dpt" else ())]
    wrong = next((name for name in refused if about.get(name)), None)
    if not about.get("do_resize", True):
        wrong = "do_resize"
    if wrong is not None:
        raise ValueError(f"{wrong} = {reprlib.repr(about[wrong])} is not supported")


def _sides(size: Any, about: Mapping[str, Any]) -> Mapping[str, Any]:
    """The size as files of today have it; one number, as in older ones, is that of the shorter side or of both."""
    if isinstance(size, int):
        longest = about.get("max_size")
        edges = {"shortest_edge": size, "longest_edge": longest}
        size = edges if longest is not None else {"height": size, "width": size}
    sides = {name: side for name, side in size.items() if side is not None}
    if not sides or not all(type(side) is int and 0 < side <= _MAX_SIDE for side in sides.values()):
        raise ValueError(f"size = {reprlib.repr(size)} is not allowed: sides are 1 to {_MAX_SIDE} pixels")
    return sides


def _own_size(sides: Mapping[str, int], about: Mapping[str, Any], kind: str) -> OwnSize | Size:
    """What each picture is resized to, or the one size of all."""
    if "shortest_edge" in sides:
        return Edges(shortest=sides["shortest_edge"], longest=sides.get("longest_edge"))
    if "max_height" in sides:
        return Within(height=sides["max_height"], width=sides["max_width"])
    size = sides["height"], sides["width"]
    if kind != "dpt":
        return size
    multiple = about.get("ensure_multiple_of") or 1
    if type(multiple) is not int or not 0 < multiple <= _MAX_SIDE:
        raise ValueError(f"ensure_multiple_of = {reprlib.repr(multiple)} is not allowed: it is 1 to {_MAX_SIDE} pixels")
    near = Near(height=size[0], width=size[1], multiple=multiple)
    return near if about.get("keep_aspect_ratio") else (near.rounded(size[0]), near.rounded(size[1]))


def _one_size(own_size: OwnSize | Size, *, square: bool) -> Size:
    """The size that a picture of 4 : 3 has, or that of all."""
    if isinstance(own_size, Edges):
        short = own_size.shortest
        wide = short if square else int(short * _USUAL_RATIO)
        return short, min(wide, own_size.longest or wide)
    if isinstance(own_size, Within):
        return own_size.height, own_size.width
    if isinstance(own_size, Near):
        return own_size.rounded(own_size.height), own_size.rounded(own_size.width)
    assert isinstance(own_size, tuple)  # noqa: S101  (there are no other kinds)
    return own_size
