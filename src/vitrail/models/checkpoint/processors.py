"""Hugging Face's preprocessor_config.json: what its image processors do to a picture, as our `Preprocess` and back."""

import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitrail.data.preprocess import Preprocess
from vitrail.errors import Notice

_HALF = (0.5, 0.5, 0.5)
_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers


@dataclass(frozen=True, kw_only=True)
class Processor:
    """What a class of Hugging Face does where its file says nothing else."""

    resample: int = 3
    size: int = 224
    square: bool = True  # one number is the size of both sides, not of the shorter one
    crops: bool = False  # whether the centre is cut out
    crop_size: int = 224
    mean: tuple[float, ...] = _HALF
    std: tuple[float, ...] = _HALF
    crop_pct: float | None = None
    normalises: bool = True


PROCESSORS = {
    "vit": Processor(resample=2),
    "deit": Processor(size=256, crops=True),
    "beit": Processor(),
    "siglip": Processor(),
    "dinov3vit": Processor(resample=2, mean=_IMAGENET[0], std=_IMAGENET[1]),
    "pvt": Processor(mean=_IMAGENET[0], std=_IMAGENET[1]),
    "bit": Processor(square=False, crops=True, mean=_CLIP[0], std=_CLIP[1]),
    "clip": Processor(square=False, crops=True, mean=_CLIP[0], std=_CLIP[1]),
    "levit": Processor(square=False, crops=True, mean=_IMAGENET[0], std=_IMAGENET[1]),
    "convnext": Processor(size=384, square=False, crop_pct=224 / 256),
    "poolformer": Processor(square=False, crops=True, mean=_IMAGENET[0], std=_IMAGENET[1], crop_pct=0.9),
    "mobilevit": Processor(square=False, crops=True, crop_size=256),
    "efficientnet": Processor(size=346, crop_size=289),
}
# Which class reads the pictures of a model, where the file does not name one.
_BY_MODEL = {
    "swin": "vit", "swinv2": "vit", "vit_mae": "vit", "vit_msn": "vit", "ijepa": "vit", "dinov3_vit": "dinov3vit",
    "cvt": "convnext", "convnextv2": "convnext", "resnet": "convnext", "regnet": "convnext", "dinov2": "bit",
    "dinov2_with_registers": "bit", "clip_vision_model": "clip", "siglip_vision_model": "siglip", "pvt_v2": "pvt",
    "mobilevitv2": "mobilevit", "data2vec-vision": "beit",
}  # fmt: skip


def read_processor(about: Mapping[str, Any], model_type: str = "") -> Preprocess | None:
    """The preprocessing that a preprocessor_config.json describes; None where it says too little.

    `model_type` is that of the config.json beside it, and tells the class where the file itself does not.
    """
    named = str(about.get("image_processor_type") or about.get("feature_extractor_type") or "")
    kind = re.sub(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$", "", named).lower()
    kind = kind if kind in PROCESSORS else _BY_MODEL.get(model_type, model_type)
    if kind not in PROCESSORS and not (about.get("image_mean") or about.get("do_normalize") is False):
        return None
    usual = PROCESSORS.get(kind, Processor(resample=2))
    mean, std = statistics(about, usual, kind)
    resample = about.get("resample", usual.resample)
    if resample not in RESAMPLE:
        raise ValueError(f"resample = {resample!r} is not supported; it must be one of {list(RESAMPLE)}")
    geometry = _geometry(about, usual, kind) if about.get("do_resize", True) else _unresized(about, usual)
    reverse = bool(about.get("do_flip_channel_order", kind == "mobilevit"))
    return Preprocess(
        channels=len(mean) if len(mean) > 1 else 3,
        mean=mean,
        std=std,
        interpolation=RESAMPLE[resample],  # type: ignore[arg-type]
        like="hf",
        channel_order="bgr" if reverse else "rgb",
        **geometry,
    )


def write_processor(preprocess: Preprocess) -> dict[str, Any]:
    """The preprocessor_config.json of a preprocessing; a notice where no processor of Hugging Face does the same."""
    height, width = preprocess.image_size
    mean, std = preprocess.statistics
    about: dict[str, Any] = {
        "do_resize": True,
        "resample": next(number for number, name in RESAMPLE.items() if name == preprocess.interpolation),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(mean),
        "image_std": list(std),
    }
    kind, size = "ViT", {"height": height, "width": width}
    if preprocess.resize == "squash" and preprocess.crop != 1:
        kind, size = "DeiT", {side: math.floor(value / preprocess.crop) for side, value in size.items()}
    elif preprocess.resize in ("window", "crop") and height == width:
        kind, size = "Bit", {"shortest_edge": math.floor(height / preprocess.crop)}
    elif preprocess.resize != "squash":
        message = f"no processor of Hugging Face does {preprocess.resize!r} to {height} x {width}; written as a resize"
        warnings.warn(message, Notice, stacklevel=2)
    if preprocess.channel_order == "bgr":
        warnings.warn("no processor of Hugging Face reverses channels and normalises them", Notice, stacklevel=2)
    cropped = {"do_center_crop": True, "crop_size": {"height": height, "width": width}} if kind != "ViT" else {}
    return {"image_processor_type": f"{kind}ImageProcessor", "size": size, **cropped, **about}


def statistics(about: Mapping[str, Any], usual: Processor, kind: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of pixels from 0 to 1, with everything that is done to levels from 0 to 255 folded into them."""
    given_mean, given_std = _numbers(about, "image_mean", usual.mean), _numbers(about, "image_std", usual.std)
    mean, std = given_mean, given_std
    # MobileViT's processor does not normalise, whatever its file says.
    if kind == "mobilevit" or not about.get("do_normalize", usual.normalises):
        mean, std = (0.0,), (1.0,)
    scale = 255.0 * float(about.get("rescale_factor") or 1 / 255) if about.get("do_rescale", True) else 255.0
    offset = 1.0 if about.get("rescale_offset") else 0.0
    again = given_std if kind == "efficientnet" and about.get("include_top", True) else (1.0,)
    channels = max(len(mean), len(std), len(again))
    means, stds, agains = (values * channels if len(values) == 1 else values for values in (mean, std, again))
    folded = tuple((value + offset) / scale for value in means)
    return folded, tuple(value * more / scale for value, more in zip(stds, agains, strict=True))


def _numbers(about: Mapping[str, Any], key: str, usual: tuple[float, ...]) -> tuple[float, ...]:
    value = about.get(key)
    if value is None:
        return usual
    return tuple(float(number) for number in (value if isinstance(value, list | tuple) else [value]))


def _geometry(about: Mapping[str, Any], usual: Processor, kind: str) -> dict[str, Any]:
    """image_size, crop and resize; ValueError for what has no fixed size."""
    size = about.get("size", usual.size)
    shorter = _shorter(size, usual)
    centre = _sides(about.get("crop_size", usual.crop_size)) if _crops(about, usual) else None
    if kind == "convnext" and shorter is not None:
        size = {"image_size": (shorter, shorter)}
        small = {"crop": float(about.get("crop_pct") or usual.crop_pct or 1), "resize": "crop"}
        return size | (small if shorter < 384 else {"resize": "squash"})
    if shorter is not None:
        share = about.get("crop_pct", usual.crop_pct) if kind == "poolformer" else None
        shorter = int(shorter / share) if share else int(256 / 224 * shorter) if kind == "levit" else shorter
        rows, columns = centre or (shorter, shorter)
        if rows != columns:
            raise ValueError(f"the shorter side is resized to {shorter}, then cut to {rows} x {columns}: not a square")
        return {"image_size": (rows, columns), "crop": _share(shorter, rows), "resize": "crop"}
    whole = _sides(size)
    if centre is None:
        return {"image_size": whole, "resize": "squash"}
    shares = {_share(have, want) for have, want in zip(whole, centre, strict=True)}
    if len(shares) > 1:
        raise ValueError(f"size {whole} and crop_size {centre} are of different shapes")
    return {"image_size": centre, "crop": shares.pop(), "resize": "squash"}


def _unresized(about: Mapping[str, Any], usual: Processor) -> dict[str, Any]:
    """Where pictures are expected to have the right size already."""
    if _crops(about, usual):
        raise ValueError("do_center_crop without do_resize cuts pictures at their own scale, which is not supported")
    size = about.get("size", usual.size)
    shorter = _shorter(size, usual)
    return {"image_size": (shorter, shorter) if shorter is not None else _sides(size), "resize": "squash"}


def _crops(about: Mapping[str, Any], usual: Processor) -> bool:
    return bool(about.get("do_center_crop", usual.crops))


def _shorter(size: Any, usual: Processor) -> int | None:
    """What the shorter side is resized to; None where both sides are given."""
    if isinstance(size, Mapping):
        if "longest_edge" in size or "max_height" in size:
            raise ValueError(f"size = {dict(size)} gives pictures of different sizes, which is not supported")
        return int(size["shortest_edge"]) if "shortest_edge" in size else None
    return int(size) if isinstance(size, int) and not usual.square else None


def _sides(size: Any) -> tuple[int, int]:
    if isinstance(size, Mapping):
        return int(size["height"]), int(size["width"])
    return (int(size), int(size)) if isinstance(size, int) else (int(size[0]), int(size[1]))


def _share(whole: int, part: int) -> float:
    """The share of which the whole is `part / share`, rounded down to whole pixels."""
    share = part / whole
    while math.floor(part / share) < whole:
        share = math.nextafter(share, 0.0)
    return share
