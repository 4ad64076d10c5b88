"""Hugging Face transformers: ViT, DeiT, DINOv2, DINOv3, MAE, MSN, I-JEPA, BEiT, the image towers of CLIP and SigLIP."""

import dataclasses
import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.errors import CheckpointError, Notice, Unsupported, nearest
from vitrail.layers.attention import SoftmaxConfig
from vitrail.layers.mlp import GeluMLPConfig, SwiGLUConfig
from vitrail.layers.patch import LinearPatchConfig
from vitrail.layers.position import LearnedConfig
from vitrail.models.backbone import Backbone, BackboneConfig
from vitrail.models.checkpoint.dialect import Foreign, Found, to_theirs
from vitrail.models.checkpoint.files import Weights
from vitrail.models.checkpoint.huggingface_config import Reader, describe, labels_of, mlp_width
from vitrail.models.checkpoint.huggingface_names import LAYOUTS, End, Layout, put_together, take_apart
from vitrail.models.registry import family_of
from vitrail.models.vit import ViTConfig

_PATCHES = re.compile(r"(\w+\.)?embeddings\.patch_embeddings?\.(projection\.)?weight")
_MARKS = {  # names that identify a model type, the most specific first
    r"embeddings\.class_embedding": "clip_vision_model",
    r"embeddings\.patch_embedding\.weight": "siglip_vision_model",
    r"embeddings\.patch_embeddings\.weight": "dinov3_vit",
    r"embeddings\.distillation_token": "deit",
    r"embeddings\.register_tokens": "dinov2_with_registers",
    r"encoder\.layer\.0\.layer_scale1\.lambda1": "dinov2",
    r"(encoder\.layer|layers)\.0\.lambda_1": "beit",
    r"embeddings\.cls_token": "vit",
    r"embeddings\.patch_embeddings\.projection\.weight": "ijepa",
}
# These classes take the square root of the number of patches.
_SQUARE_ONLY = ("clip_vision_model", "siglip_vision_model", "dinov2", "dinov2_with_registers", "beit")


class HuggingFace:
    """`transformers`; config.json is read if there is one; otherwise most of it follows from the shapes."""

    name = "hf"

    def recognises(self, weights: Weights) -> bool:
        """Whether the tensors' names are those of one of transformers' vision models."""
        return any(_PATCHES.fullmatch(name) for name in weights.tensors)

    def read(self, weights: Weights, hint: BackboneConfig | None) -> Found:
        """The model of the weights; `hint` gives the number of heads if there is no config.json."""
        beside = weights.config or {}
        layout = _layout(weights.tensors, beside, weights.path)
        tensors = take_apart(layout.kind, layout.classic(weights.tensors))
        end = next(end for end in layout.ends if all(marker in tensors for marker in end.markers))
        options = beside.get("vision_config", beside) if "model_type" in beside else {}
        if not isinstance(options, dict):
            raise CheckpointError(f"{weights.path}: config.json says vision_config = {options!r}; it must be an object")
        reader = Reader(layout, end, tensors, options, weights.path, hint, weights.image_size)
        config = reader.config()
        return Found(
            family=end.family,
            config=config,
            tensors=tensors,
            rules=reader.rules,
            ignored=f"{layout.ignored}|{end.ignored}",
            labels=labels_of(beside, config.num_classes, weights.path),
        )

    def write(self, model: Backbone) -> Foreign:
        """The model in transformers' format; Unsupported, with the reason, if there is no such class."""
        config = model.config
        if not isinstance(config, ViTConfig):
            raise Unsupported(f"{type(model).__name__} cannot be converted to transformers; only plain ViTs can")
        layout, end = _nearest_class(family_of(model).name, config)
        tensors = put_together(layout.kind, _rename(model, config, layout, end))
        about = describe(model, config, layout, end)
        # `read` decides whether their class is the same model.
        written = Weights(path=Path(end.architecture), tensors=tensors, config=about, metadata={})
        theirs = self.read(written, None).config
        unsaid = not config.num_classes and {config.pool.kind, end.pool.kind} == {"class", "mean"}
        differences = _differences(config, replace(theirs, pool=config.pool) if unsaid else theirs)  # type: ignore[call-arg]
        if layout.kind in _SQUARE_ONLY and any(isinstance(about[key], list) for key in ("image_size", "patch_size")):
            differences.append("images and patches, which must be square")
        if differences:
            raise Unsupported(
                f"transformers has no class for this model; the closest, {end.architecture}, differs in "
                + "; ".join(differences)
            )
        if unsaid:
            how = f"{config.pool.kind} pooling is not stored"
            warnings.warn(f"{end.architecture} returns all tokens; {how}", Notice, stacklevel=2)
        return Foreign(tensors=layout.prefixed(tensors, end), config=about)


def _layout(tensors: Mapping[str, Tensor], beside: Mapping[str, Any], path: Path) -> Layout:
    guesses = (k for mark, k in _MARKS.items() if any(re.fullmatch(rf"(\w+\.)?{mark}", name) for name in tensors))
    kind = str(beside.get("model_type") or next(guesses))
    if kind not in LAYOUTS:
        raise Unsupported(f"{path}: model_type {kind!r} is not supported; {nearest(kind, LAYOUTS)}")
    return LAYOUTS[kind]


def _nearest_class(family: str, config: ViTConfig) -> tuple[Layout, End]:
    """The class whose tensors are most like the model's; it may still be another model."""
    kinds = {position.kind for position in config.position}
    bare_patches = LearnedConfig(prefix=False) in config.position
    if "rope" in kinds or "relative" in kinds:
        kind = "dinov3_vit" if "rope" in kinds else "beit"
    elif config.embed_norm:
        kind = "clip_vision_model"
    elif not config.class_token:
        kind = "siglip_vision_model" if config.pool.kind == "attention" else "ijepa"
    elif config.layer_scale is not None or config.pool.kind == "class_mean" or isinstance(config.mlp, SwiGLUConfig):
        kind = "dinov2_with_registers" if config.registers or bare_patches else "dinov2"
    else:
        kind = "deit" if family == "deit" or config.registers == 1 else "vit"
    layout = LAYOUTS[kind]
    wanted = (family, config.num_classes > 0, config.pool.kind)
    ends = [end for end in layout.ends if (end.family, bool(end.heads)) == wanted[:2]] or [layout.ends[-1]]
    return layout, next((end for end in ends if end.pool.kind == wanted[2]), ends[0])


def _rename(model: Backbone, config: ViTConfig, layout: Layout, end: End) -> dict[str, Tensor]:
    rules = layout.choose(gated=isinstance(config.mlp, SwiGLUConfig)) + end.rules
    try:
        tensors = to_theirs(model, rules)
    except CheckpointError as error:
        raise Unsupported(
            f"transformers has no class for this model; the closest is {end.architecture}, but {error}"
        ) from error
    if lacking := layout.lacking(rules, tensors, config.depth):
        raise Unsupported(
            f"transformers has no class for this model; the closest, {end.architecture}, also has "
            f"{', '.join(lacking[:8])}"
        )
    return tensors


def _differences(ours: ViTConfig, theirs: BackboneConfig) -> list[str]:
    """The options in which two configs differ."""
    if type(ours) is not type(theirs) or not isinstance(theirs, ViTConfig):
        return [f"its family, {type(theirs).__name__}"]
    a, b = _essence(ours), _essence(theirs)
    names = [field.name for field in dataclasses.fields(a) if getattr(a, field.name) != getattr(b, field.name)]
    return [f"{name} ({getattr(b, name)}, not {getattr(a, name)})" for name in names]


def _essence(config: ViTConfig) -> ViTConfig:
    """The config without options that do not change predictions, in a canonical form."""
    patch, mlp, attention = config.patch, config.mlp, config.attention
    if isinstance(patch, LinearPatchConfig) and patch.stride is None:
        patch = replace(patch, stride=patch.size)
    if isinstance(mlp, GeluMLPConfig | SwiGLUConfig):
        mlp = replace(mlp, ratio=1.0, hidden=mlp_width(config))
    if isinstance(attention, SoftmaxConfig):
        head_dim = attention.head_dim or config.dim // config.num_heads
        attention = replace(attention, head_dim=head_dim, dropout=0.0, fused=True)
    return replace(
        config,
        patch=patch,
        mlp=mlp,
        attention=attention,
        layer_scale=None if config.layer_scale is None else 1.0,
        dropout=0.0,
        drop_path=0.0,
        patch_drop=0.0,
        dynamic_size=False,
        init="paper",
    )
