"""timm's checkpoints: vision_transformer.py and its hybrids, eva.py, beit.py and deit.py, where they are plain ViTs."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.layers.attention import SoftmaxConfig
from vitrail.layers.mlp import GeluMLPConfig, MLPConfig, SwiGLUConfig
from vitrail.layers.norm import LayerNormConfig, NormConfig, RMSNormConfig
from vitrail.layers.patch import Grid
from vitrail.layers.pool import AttentionPoolConfig, ClassPoolConfig, MeanPoolConfig, PoolConfig
from vitrail.layers.position import LearnedConfig, PositionConfig
from vitrail.layers.relative import RelativeConfig
from vitrail.models.backbone import Backbone, BackboneConfig
from vitrail.models.checkpoint.config_match import check_match
from vitrail.models.checkpoint.dialect import Foreign, Found, depth_of
from vitrail.models.checkpoint.files import Weights
from vitrail.models.checkpoint.originals import PRETRAINING, as_timm
from vitrail.models.checkpoint.shapes import grid_of, name_the_model, patches_of, relative_grid, usual_heads
from vitrail.models.checkpoint.timm_export import export
from vitrail.models.checkpoint.timm_hybrid import patch_rules, read_patch, stage_depths
from vitrail.models.checkpoint.timm_names import DINOV3_ROPE, Settings, from_config, from_hint
from vitrail.models.checkpoint.timm_rules import Layout, rules
from vitrail.models.deit import DeiTConfig
from vitrail.models.registry import is_known, resolve
from vitrail.models.vit import ViTConfig

_TRUNK = "visual.trunk."  # where open_clip keeps a timm model
_TEXT = r"(text|transformer|token_embedding|ln_final)\..*|positional_embedding|text_projection|logit_(scale|bias)"
# Tables that older versions saved; they are computed.
_COMPUTED = r"(blocks\.\d+\.)?(attn\.)?(rope\.(pos_embed|bands|periods|freqs_\w+)|relative_position_index)"

# Which part of the structure an entry of model_args may change.
_TOUCHES = {
    "depth": "depth", "embed_dim": "dim", "num_heads": "num_heads", "patch_size": "patch", "pos_embed": "position",
    "use_abs_pos_emb": "position", "use_rot_pos_emb": "position", "use_rel_pos_bias": "position",
    "use_shared_rel_pos_bias": "position", "class_token": "class_token", "pre_norm": "embed_norm",
    "use_pre_transformer_norm": "embed_norm", "qkv_bias": "attention bias", "attn_type": "attention bias",
    "swiglu_mlp": "mlp", "norm_layer": "norm", "init_values": "layer_scale", "final_norm": "final_norm",
    "use_post_transformer_norm": "final_norm",
}  # fmt: skip

Tensors = Mapping[str, Tensor]


class Timm:
    """`timm.create_model`'s plain ViTs: VisionTransformer, its distilled DeiT, Eva and Beit."""

    name = "timm"

    def recognises(self, weights: Weights) -> bool:
        """Whether the names are timm's, of a whole model or of the image tower of an open_clip model."""
        wanted, tensors = ("patch_embed.proj.weight", "blocks.0.attn.proj.weight"), as_timm(weights.tensors)
        return any(all(prefix + name in tensors for name in wanted) for prefix in ("", _TRUNK))

    def read(self, weights: Weights, hint: BackboneConfig | None) -> Found:
        """The model of the weights: from the tensors, then config.json, then the hint, then the usual values."""
        tensors, path = image_tower(as_timm(weights.tensors)), weights.path
        settings = from_config(weights.config, path).or_else(from_hint(hint))
        settings = settings.or_else(_guess(tensors, settings, path))
        config = _config(tensors, settings, weights)
        _check_said(config, weights.config or {}, path)
        in_open_clip = _TRUNK + "patch_embed.proj.weight" in weights.tensors
        if "head.weight" in tensors and "head.bias" not in tensors and not in_open_clip:
            raise CheckpointError(f"{path}: the checkpoint does not fit the model: missing (1): head.bias")
        return Found(
            family="deit" if "dist_token" in tensors else "vit",
            config=config,
            tensors=tensors,
            rules=[*patch_rules(stage_depths(tensors)), *rules(Layout.of(tensors))],
            ignored=f"{_COMPUTED}|{PRETRAINING}" + (f"|{_TEXT}" if in_open_clip else ""),
            labels=_labels(weights, config.num_classes),
        )

    def write(self, model: Backbone) -> Foreign:
        """The model in timm's format, for `timm.create_model("local-dir:...")`."""
        return export(model)


def _check_said(config: ViTConfig, said: Mapping[str, Any], path: Path) -> None:
    """Checks the tensors against config.json, if vitrail has its architecture."""
    name, args = said.get("architecture"), said.get("model_args") or {}
    classes = args.get("num_classes", said.get("num_classes"))
    if classes and config.num_classes == 0:
        raise CheckpointError(f"{path}: config.json says {classes} classes, but the head is missing: head.weight")
    for key, have in (("depth", config.depth), ("embed_dim", config.dim)):
        if args.get(key, have) != have:
            raise CheckpointError(f"{path}: config.json says {key} = {args[key]}; the tensors have {have}")
    if not isinstance(name, str) or not is_known(name):
        return
    touched = {field for key, field in _TOUCHES.items() if key in args}
    check_match(config, resolve(name)[1], by=f"config.json ({name})", path=path, ignoring=touched)


def image_tower(tensors: Tensors) -> Tensors:
    """Removes open_clip's prefix from the image tower and renames its projection to head; other tensors stay."""
    if _TRUNK + "patch_embed.proj.weight" not in tensors:
        return tensors
    renamed = {name.removeprefix(_TRUNK): tensor for name, tensor in tensors.items()}
    return {re.sub(r"^visual\.head\.proj\.", "head.", name): tensor for name, tensor in renamed.items()}


def _guess(tensors: Tensors, settings: Settings, path: Path) -> Settings:
    """The usual values of what is not known; an error if two usual models have the same names."""
    relative = any(name.endswith("relative_position_bias_table") for name in tensors)
    like_eva = any(f"blocks.0.{name}" in tensors for name in ("gamma_1", "attn.q_bias", "attn.q_proj.weight"))
    like_dinov3 = like_eva and not relative and "pos_embed" not in tensors and "reg_token" in tensors
    gated = _gated(tensors)
    if settings.rope is None and not relative and not like_dinov3 and (like_eva or "pos_embed" not in tensors):
        raise CheckpointError(_ask(path, "whether positions are rotary", "eva02_base_patch14"))
    if (
        settings.activation is None
        and not gated
        and any(f"{name}.weight" in tensors for name in ("norm_pre", "attn_pool.q"))
    ):
        raise CheckpointError(_ask(path, "which GELU the MLP has", "vit_base_patch16_clip_quickgelu"))
    return Settings(
        eps=1e-5 if like_dinov3 or "norm_pre.weight" in tensors else 1e-6,
        activation="gelu",
        rope=(DINOV3_ROPE,) if like_dinov3 else (),
        placement="pre",
        pool=_usual_pool(tensors, like_dinov3=like_dinov3),
        dynamic_size=False,
        layer_scale=1e-5,
    )


def _ask(path: Path, what: str, example: str) -> str:
    return (
        f"{path}: {what} cannot be read from the tensors, and there is no config.json of timm; "
        f"{name_the_model(example)}"
    )


def _usual_pool(tensors: Tensors, *, like_dinov3: bool) -> PoolConfig:
    if "attn_pool.latent" in tensors:
        return AttentionPoolConfig()
    if "fc_norm.weight" in tensors or "cls_token" not in tensors or like_dinov3:
        return MeanPoolConfig()
    return ClassPoolConfig()


def _config(tensors: Tensors, settings: Settings, weights: Weights) -> ViTConfig:
    path = weights.path
    patch, channels, step = read_patch(tensors, path)
    dim = tensors["patch_embed.proj.weight"].shape[0]
    grid, positions = _positions(tensors, settings, step, weights)
    family = DeiTConfig if "dist_token" in tensors else ViTConfig
    pooled, over_tokens = "fc_norm.weight" in tensors, "norm.weight" in tensors
    pool = AttentionPoolConfig() if "attn_pool.latent" in tensors else settings.pool
    return family(
        dim=dim,
        depth=depth_of(tensors),
        num_heads=_heads(tensors, settings, dim, path),
        image_size=(grid[0] * step[0], grid[1] * step[1]),
        channels=channels,
        num_classes=len(tensors["head.weight"]) if "head.weight" in tensors else 0,
        dynamic_size=bool(settings.dynamic_size),
        patch=patch,
        position=positions,
        class_token="cls_token" in tensors,
        registers=tensors["reg_token"].shape[1] if "reg_token" in tensors else 0,
        embed_norm="norm_pre.weight" in tensors,
        attention=_attention(tensors),
        mlp=_mlp(tensors, settings),
        norm=_norm(tensors, settings),
        norm_placement=settings.placement or "pre",
        layer_scale=settings.layer_scale if {"blocks.0.ls1.gamma", "blocks.0.gamma_1"} & set(tensors) else None,
        final_norm="tokens" if over_tokens else "pooled" if pooled else "none",
        pool=pool or ClassPoolConfig(),
        head_bias="head.bias" in tensors or "head.weight" not in tensors,
        init="trunc_normal",
    )


def _heads(tensors: Tensors, settings: Settings, dim: int, path: Path) -> int:
    for name, tensor in tensors.items():
        if name.endswith("relative_position_bias_table"):
            return tensor.shape[1]
    if "blocks.0.attn.q_norm.weight" in tensors:
        return dim // len(tensors["blocks.0.attn.q_norm.weight"])
    return settings.num_heads or usual_heads(dim, path)


def _norm(tensors: Tensors, settings: Settings) -> NormConfig:
    kind = LayerNormConfig if "blocks.0.norm1.bias" in tensors else RMSNormConfig
    return kind() if settings.eps is None else kind(eps=settings.eps)


def _attention(tensors: Tensors) -> SoftmaxConfig:
    names = {name.removeprefix("blocks.0.attn.") for name in tensors if name.startswith("blocks.0.attn.")}
    full, without_keys = {"qkv.bias", "k_proj.bias"}, {"q_bias", "q_proj.bias"}
    return SoftmaxConfig(
        bias="qkv" if full & names else "qv" if without_keys & names else "none",
        qk_norm="q_norm.weight" in names,
        inner_norm="norm.weight" in names,
    )


def _gated(tensors: Tensors) -> bool:
    """Whether the MLP is a SwiGLU: two maps, or one with twice the rows that the next map reads."""
    fc1, fc2 = tensors.get("blocks.0.mlp.fc1.weight"), tensors.get("blocks.0.mlp.fc2.weight")
    packed = fc1 is not None and fc2 is not None and fc1.shape[0] == 2 * fc2.shape[1]
    return packed or "blocks.0.mlp.fc1_g.weight" in tensors


def _mlp(tensors: Tensors, settings: Settings) -> MLPConfig:
    fc2 = tensors.get("blocks.0.mlp.fc2.weight")
    hidden = None if fc2 is None else fc2.shape[1]  # a missing tensor is reported later, with the others
    inner_norm = "blocks.0.mlp.norm.weight" in tensors
    if _gated(tensors):
        return SwiGLUConfig(hidden=hidden, inner_norm=inner_norm)
    return GeluMLPConfig(hidden=hidden, activation=settings.activation or "gelu", inner_norm=inner_norm)


def _positions(
    tensors: Tensors, settings: Settings, step: tuple[int, int], weights: Weights
) -> tuple[Grid, tuple[PositionConfig, ...]]:
    """The grid that the tables are made for, and which positions the model has."""
    num_prefix = sum(tensors[name].shape[1] for name in ("cls_token", "dist_token", "reg_token") if name in tensors)
    said, wanted = patches_of(settings.image_size, step) or (14, 14), patches_of(weights.image_size, step)
    positions: list[PositionConfig] = []
    grid = None
    if "pos_embed" in tensors:
        length = tensors["pos_embed"].shape[1]
        grid, with_prefix = _learned_grid(length, num_prefix, said, wanted, weights.path)
        positions.append(LearnedConfig(prefix=with_prefix))
    positions += settings.rope or ()
    tables = [len(tensor) for name, tensor in tensors.items() if name.endswith("relative_position_bias_table")]
    if tables:
        offsets = tables[0] - (3 if num_prefix else 0)
        same = (2 * said[0] - 1) * (2 * said[1] - 1) == offsets
        grid = grid or (said if same else relative_grid(offsets, weights.path, said=wanted))
        positions.append(RelativeConfig())
    return grid or said, tuple(positions)


def _learned_grid(length: int, num_prefix: int, said: Grid, wanted: Grid | None, path: Path) -> tuple[Grid, bool]:
    """The grid of a table, and whether the prefix has positions too: of both readings, the one that gives a grid.

    `said` is the grid that a config gives, `wanted` that of the caller's image size.
    """
    readings = {True: length - num_prefix, False: length}
    if num_prefix == 0:
        del readings[False]
    for with_prefix, count in readings.items():
        if count == said[0] * said[1]:
            return said, with_prefix
    squares = {with_prefix: count for with_prefix, count in readings.items() if math.isqrt(max(count, 0)) ** 2 == count}
    if len(squares) > 1:
        raise CheckpointError(
            _ask(path, f"whether {num_prefix} of the {length} positions belong to extra tokens", "vit_...")
        )
    rectangles = {} if wanted is None else {key: n for key, n in readings.items() if n == wanted[0] * wanted[1]}
    with_prefix, count = next(iter((rectangles or squares).items()), (True, length - num_prefix))
    return grid_of(count, path, said=wanted), with_prefix


def _labels(weights: Weights, num_classes: int) -> list[str] | None:
    config = weights.config or {}
    pretrained = config.get("pretrained_cfg") or {}
    for names in (config.get("label_names"), pretrained.get("label_names"), config.get("labels")):
        if isinstance(names, list) and len(names) == num_classes:
            return [str(name) for name in names]
    return None
