"""What timm's architecture names and model_args add to the tensors: heads, eps, activation, rope, pooling."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args

from vitrail.errors import CheckpointError, Unsupported
from vitrail.layers.block import NormPlacement
from vitrail.layers.mlp import GeluMLPConfig
from vitrail.layers.norm import LayerNormConfig, RMSNormConfig
from vitrail.layers.pool import AttentionPoolConfig, ClassPoolConfig, MeanPoolConfig, PoolConfig
from vitrail.layers.rope import RopeConfig
from vitrail.models.backbone import BackboneConfig
from vitrail.models.vit import ViTConfig

Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "silu"]

DINOV3_ROPE = RopeConfig(theta=100.0, coordinates="centred", pairs="halves")

# The number of heads, by the word in the name that says the size.
_HEADS = {
    "tiny": 3, "xsmall": 4, "wee": 4, "little": 5, "small": 6, "medium": 8, "mediumd": 8, "betwixt": 10, "base": 12,
    "so150m2": 13, "so150m": 14, "large": 16, "intern300m": 16, "so400m": 16, "huge": 16, "giant": 16, "giantopt": 16,
    "gigantic": 16, "enormous": 16, "7b": 32,
}  # fmt: skip

_EVA_ROPE = {"use_rot_pos_emb": True, "ref_feat_shape": 16}
_DINO_ROPE = {"use_rot_pos_emb": True, "rope_type": "dinov3", "rope_temperature": 100, "rope_rotate_half": True}
_XY_ROPE = {"use_rot_pos_emb": True, "rope_grid_indexing": "xy"}

# Arguments of some architectures' builders; all entries that match a name apply, later ones win.
_SET_BY_NAME: list[tuple[str, dict[str, Any]]] = [
    (r"test_vit2?", {"num_heads": 2}),
    (r"test_vit[34]", {"num_heads": 3}),
    (r"test_vit3", {"pool_include_prefix": True}),
    (r"vit_base_patch16_gap_224", {"num_heads": 16}),
    (r"vit_base_patch\d+_plus_.*", {"num_heads": 14}),
    (r"vit_huge_plus_.*", {"num_heads": 20}),
    (r"vit_giant_.*(dinov2|tipsv2|lingbot)", {"num_heads": 24}),
    (r"beit3_.*|vit_.*clip.*", {"eps": 1e-5}),
    (r".*quickgelu.*", {"act_layer": "quick_gelu"}),
    (r"vit_(base_patch32|so400m_patch16|giantopt_patch16)_siglip_.*", {"act_layer": "gelu_tanh"}),
    (r"vit_large_patch16_siglip_(gap_)?512", {"act_layer": "gelu_tanh"}),
    (r"eva02_(?!enormous).*|vit_.*_rope_reg\d_gap_.*", _EVA_ROPE),
    (r"vit_.*(dinov3|lingbot).*", {"eps": 1e-5, **_DINO_ROPE}),
    (r"vit_.*dinov3.*", {"global_pool": "avg"}),
    (r"vit_.*lingbot", {"global_pool": "token"}),
    (r"vit_pe_.*|vit_.*_rope_((mixed|ape)_)*\d+", _XY_ROPE),
    (r"vit_.*_rope_mixed_.*", {"rope_type": "mixed"}),
    (r"vit_base_patch16_rpn_224|eva02_enormous_.*", {"use_post_norm": True}),
]

# Architectures whose layers vitrail's ViT does not have, and which.
_UNLIKE = {
    r"aimv2_.*": "projections without a bias and a norm inside the patch embedding",
    r".*_sapiens2": "fewer heads for keys than for queries",
    r"vit_.*_xp_.*|vit_pwee_.*|vit_.*_18x2_.*": "attention and MLP side by side",
    r"vit_(dwee|dlittle|dpwee)_.*": "differential attention",
}

# model_args that the tensors show too, that matter in training only, or that do not change the result.
_NO_NEWS = {
    "patch_size", "in_chans", "num_classes", "embed_dim", "depth", "mlp_ratio", "qkv_bias", "qkv_fused", "qk_norm",
    "scale_attn_norm", "scale_mlp_norm", "scale_mlp", "scale_attn_inner", "proj_bias", "class_token",
    "pos_embed", "no_embed_class", "reg_tokens", "num_reg_tokens", "pre_norm", "final_norm", "fc_norm",
    "use_pre_transformer_norm", "use_post_transformer_norm", "use_fc_norm", "use_abs_pos_emb", "use_rel_pos_bias",
    "use_shared_rel_pos_bias", "swiglu_mlp", "swiglu_align_to", "attn_type", "drop_rate", "pos_drop_rate",
    "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate", "weight_init", "fix_init",
    "head_init_scale", "rope_shift_coords", "rope_jitter_coords", "rope_rescale_coords", "dynamic_img_pad",
}  # fmt: skip
_READ = {
    "num_heads", "img_size", "norm_layer", "act_layer", "global_pool", "pool_include_prefix", "use_post_norm",
    "dynamic_img_size", "use_rot_pos_emb", "rope_type", "rope_temperature", "rope_rotate_half", "rope_grid_indexing",
    "rope_grid_offset", "ref_feat_shape", "init_values",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings that tensors do not show; None: not known. An empty `rope` means no rotary positions."""

    num_heads: int | None = None
    eps: float | None = None
    activation: Activation | None = None
    rope: tuple[RopeConfig, ...] | None = None
    placement: NormPlacement | None = None
    pool: PoolConfig | None = None
    image_size: tuple[int, int] | None = None
    dynamic_size: bool | None = None
    layer_scale: float | None = None  # its initial value

    def or_else(self, other: Self) -> Self:
        """The same, with unknown settings taken from `other`."""
        gaps = {each.name: getattr(other, each.name) for each in fields(self) if getattr(self, each.name) is None}
        return replace(self, **gaps)


def from_hint(hint: BackboneConfig | None) -> Settings:
    """The settings in the config of a named model."""
    if not isinstance(hint, ViTConfig):
        return Settings()
    return Settings(
        num_heads=hint.num_heads,
        eps=hint.norm.eps if isinstance(hint.norm, LayerNormConfig | RMSNormConfig) else None,
        activation=hint.mlp.activation if isinstance(hint.mlp, GeluMLPConfig) else "gelu",
        rope=tuple(position for position in hint.position if isinstance(position, RopeConfig)),
        placement=hint.norm_placement,
        pool=hint.pool,
        image_size=hint.image_size,
        dynamic_size=hint.dynamic_size,
        layer_scale=hint.layer_scale,
    )


def from_config(config: Mapping[str, Any] | None, path: Path) -> Settings:
    """The settings in timm's config.json: model_args, then the arguments of the architecture's builder."""
    if config is None or not isinstance(config.get("architecture"), str):
        return Settings()
    name = config["architecture"].split(".", maxsplit=1)[0]
    model_args = config.get("model_args") or {}
    if unread := sorted(set(model_args) - _NO_NEWS - _READ):
        raise CheckpointError(f"{path}: model_args in config.json has unsupported entries: {', '.join(unread)}")
    args = {**builder_args(name), **model_args}
    if "norm_layer" in model_args:
        args["eps"] = _eps(model_args["norm_layer"])
    if args.get("pool_include_prefix"):
        raise Unsupported(f"{path}: {name} pools class and register tokens with the patches, which is not supported")
    pretrained = config.get("pretrained_cfg") or config
    size = args.get("img_size") or (pretrained.get("input_size") or [None])[1:] or None
    known = "num_heads" in builder_args(name)
    pool = args.get("global_pool", config.get("global_pool"))
    return Settings(
        num_heads=args.get("num_heads"),
        eps=args.get("eps", 1e-6 if known else None),
        activation=_activation(args["act_layer"]) if "act_layer" in args else ("gelu" if known else None),
        rope=_rope(args, name) if known or "use_rot_pos_emb" in args else None,
        placement=("res_post" if args.get("use_post_norm") else "pre") if known or "use_post_norm" in args else None,
        pool=_pool(pool) if pool else None,
        image_size=_pair(size) if size else None,
        dynamic_size=args.get("dynamic_img_size"),
        layer_scale=args.get("init_values"),
    )


def builder_args(name: str) -> dict[str, Any]:
    """The arguments of timm's builder of this name that tensors do not show; empty: unknown."""
    for pattern, reason in _UNLIKE.items():
        if re.fullmatch(pattern, name):
            raise Unsupported(f"timm's {name} is not supported: it has {reason}")
    heads = next((_HEADS[word] for word in name.split("_") if word in _HEADS), None)
    args: dict[str, Any] = {} if heads is None else {"num_heads": heads}
    for pattern, changes in _SET_BY_NAME:
        if re.fullmatch(pattern, name):
            args |= changes
    return args


def _rope(args: Mapping[str, Any], name: str) -> tuple[RopeConfig, ...]:
    if not args.get("use_rot_pos_emb"):
        return ()
    kind, order = args.get("rope_type", "cat"), args.get("rope_grid_indexing", "ij")
    if kind not in ("cat", "dinov3"):
        raise Unsupported(f"timm's {name} has {kind} rotary positions; only those of EVA-02 and DINOv3 are supported")
    if kind == "cat" and (order != "ij" or args.get("rope_grid_offset")):
        raise Unsupported(f"timm's {name} has unsupported rotary positions: columns before rows, or an offset")
    reference = args.get("ref_feat_shape")
    rope = RopeConfig(
        theta=float(args.get("rope_temperature", 10_000.0)),
        coordinates="centred" if kind == "dinov3" else "index",
        reference=_pair(reference) if kind == "cat" and reference is not None else None,
        pairs="halves" if args.get("rope_rotate_half") else "neighbours",
    )
    if (kind == "dinov3") != (rope.pairs == "halves"):
        raise Unsupported(f"timm's {name} mixes two layouts of rotary positions, which is not supported")
    return (rope,)


def _eps(norm_layer: str) -> float:
    if str(norm_layer).lower() not in ("layernorm", "layernormfp32", "rmsnorm", "rmsnormfp32"):
        raise Unsupported(f"norm_layer {norm_layer} is not supported; it must be LayerNorm or RMSNorm")
    return 1e-6


def _activation(act_layer: str) -> Activation:
    # Gated MLPs have SiLU too, and the tensors show that they are.
    names: dict[str, Activation] = {name: name for name in get_args(Activation)}
    if act_layer not in names:
        raise Unsupported(f"act_layer {act_layer} is not supported; it must be one of {', '.join(names)}")
    return names[act_layer]


def _pool(global_pool: str) -> PoolConfig:
    pools = {"token": ClassPoolConfig(), "avg": MeanPoolConfig(), "map": AttentionPoolConfig()}
    if global_pool not in pools:
        raise Unsupported(f"global_pool {global_pool!r} is not supported; it must be one of {', '.join(pools)}")
    return pools[global_pool]


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
