"""A ViT as a timm model: the class and arguments of timm that build the same model, or why there are none."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.errors import Unsupported
from vitrail.layers.attention import SoftmaxConfig
from vitrail.layers.conv_stem import ConvStemConfig
from vitrail.layers.mlp import GeluMLPConfig, SwiGLUConfig
from vitrail.layers.norm import LayerNormConfig, RMSNormConfig
from vitrail.layers.patch import LinearPatchConfig
from vitrail.layers.pool import AttentionPoolConfig, ClassPoolConfig, MeanPoolConfig
from vitrail.layers.position import (
    AddedPositionConfig,
    FixedPosition,
    LearnedConfig,
    SinCos1DConfig,
    SinCos2DConfig,
)
from vitrail.layers.relative import RelativeConfig
from vitrail.layers.resnet_stem import ResNetPatchConfig
from vitrail.layers.rope import RopeConfig
from vitrail.models.backbone import Backbone
from vitrail.models.checkpoint.dialect import Foreign, to_theirs
from vitrail.models.checkpoint.timm_hybrid import builder, patch_rules
from vitrail.models.checkpoint.timm_rules import Layout, rules
from vitrail.models.vit import ViT, ViTConfig

_POOLS = {ClassPoolConfig: "token", MeanPoolConfig: "avg", AttentionPoolConfig: "map"}


class _Words(NamedTuple):
    """One of timm's builders, the arguments that make it the model, and how its class keeps tensors."""

    architecture: str
    args: dict[str, Any]
    layout: Layout


class _Parts(NamedTuple):
    """The parts of a config, each of a kind that timm has."""

    config: ViTConfig
    distilled: bool
    patch: LinearPatchConfig
    attention: SoftmaxConfig
    mlp: GeluMLPConfig | SwiGLUConfig
    norm: LayerNormConfig | RMSNormConfig
    added: AddedPositionConfig | None
    rope: RopeConfig | None
    relative: bool

    @property
    def num_prefix(self) -> int:
        return int(self.config.class_token) + int(self.distilled) + self.config.registers

    @property
    def no_embed_class(self) -> bool:
        """Whether there is a prefix that the table of positions leaves out."""
        return self.num_prefix > 0 and not (isinstance(self.added, LearnedConfig) and self.added.prefix)


def export(model: Backbone) -> Foreign:
    """The tensors and config.json for timm, or Unsupported with the reason."""
    if not isinstance(model, ViT):
        raise Unsupported(f"only ViT and DeiT are written as timm models; this is {type(model).__name__}")
    parts = _parts(model)
    words = _choose(parts)
    patch = model.config.patch
    if isinstance(patch, ResNetPatchConfig):
        if words.architecture != "vit_base_patch16_224":
            raise Unsupported("timm's hybrids are VisionTransformers with plain MLPs and norms with eps 1e-6")
        words = words._replace(architecture=builder(patch))
    depths = patch.depths if isinstance(patch, ResNetPatchConfig) else ()
    tensors = to_theirs(model, [*patch_rules(depths), *rules(words.layout)])
    return Foreign(tensors=tensors | _computed(model, parts), config=_hub_config(model, words))


def _parts(model: ViT) -> _Parts:
    config = model.config
    added = [each for each in config.position if isinstance(each, AddedPositionConfig)]
    ropes = [each for each in config.position if isinstance(each, RopeConfig)]
    patch, attention, mlp, norm = config.patch, config.attention, config.mlp, config.norm
    if isinstance(patch, ResNetPatchConfig):  # timm's patches are those of the ResNet's map
        patch = LinearPatchConfig(size=patch.size)
    if isinstance(patch, ConvStemConfig):
        raise Unsupported(
            "timm's ViTs have no stem of convolutions; `vitrail export` writes a file that needs no library"
        )
    if not isinstance(patch, LinearPatchConfig) or patch.stride not in (None, patch.size) or any(patch.padding):
        raise Unsupported("timm's ViTs have no overlapping or padded patches")
    if not isinstance(attention, SoftmaxConfig) or attention.temperature != 1.0:
        raise Unsupported("timm's ViTs have softmax attention with a temperature of 1")
    if config.reduce is not None:
        raise Unsupported(f"timm's ViTs keep all tokens; this one has reduce {config.reduce.kind!r}")
    if attention.head_dim not in (None, config.dim / config.num_heads):
        raise Unsupported(f"timm's heads share the width; head_dim {attention.head_dim} x {config.num_heads} does not")
    if not isinstance(mlp, GeluMLPConfig | SwiGLUConfig) or not isinstance(norm, LayerNormConfig | RMSNormConfig):
        raise Unsupported(f"timm's ViTs have no {mlp.kind} with {norm.kind} norm")
    if len(added) > 1 or any(not isinstance(p, LearnedConfig | SinCos1DConfig | SinCos2DConfig) for p in added):
        raise Unsupported("timm's ViTs add one table of positions, with a vector of its own for each patch")
    if type(config.pool) not in _POOLS:
        raise Unsupported(f"timm has no {config.pool.kind} pooling; it has those of {', '.join(_POOLS.values())}")
    if config.norm_placement == "post":
        raise Unsupported("timm's ViTs normalise before each branch or at its end, not after the residual sum")
    if config.embed_norm == patch.bias:
        raise Unsupported(
            "timm's ViTs have either a bias in the patch embedding or a norm after it (embed_norm), not both or neither"
        )
    return _Parts(
        config, model.distillation, patch, attention, mlp, norm, added[0] if added else None,
        ropes[0] if ropes else None, any(isinstance(p, RelativeConfig) for p in config.position),
    )  # fmt: skip


def _choose(parts: _Parts) -> _Words:
    """The first of timm's classes that can build the model; otherwise Unsupported with the reason of each."""
    asked = [_deit] if parts.distilled else [_beit] if parts.relative else [_vit, _eva]
    reasons = []
    for express in asked:
        words = express(parts)
        if not isinstance(words, str):
            return words
        reasons.append(words)
    raise Unsupported("timm has no class for this model: " + "; ".join(reasons))


def _vit(parts: _Parts) -> _Words | str:
    config, gated = parts.config, isinstance(parts.mlp, SwiGLUConfig)
    if parts.rope is not None or parts.attention.bias == "qv" or config.norm_placement != "pre":
        return "VisionTransformer has no rotary positions, no bias on queries and values only, and norms first"
    if parts.norm.eps == 1e-6:
        architecture = "vit_giant_patch14_dinov2" if gated else "vit_base_patch16_224"
    elif parts.norm.eps == 1e-5 and isinstance(parts.norm, LayerNormConfig) and not gated:
        architecture = "vit_base_patch16_clip_224"
    else:
        return f"no VisionTransformer has {parts.norm.kind} norm with eps {parts.norm.eps} beside {parts.mlp.kind}"
    if isinstance(config.pool, AttentionPoolConfig) and (gated or parts.mlp.inner_norm):
        return "its attention pooling has a plain MLP"
    args = _shared(parts, packed=gated) | {
        "pos_embed": "none" if parts.added is None else "learn",
        "reg_tokens": config.registers,
        "patch_drop_rate": config.patch_drop,
        "pre_norm": config.embed_norm,
        "final_norm": config.final_norm != "none",
        "fc_norm": config.final_norm == "pooled",
        "qk_norm": parts.attention.qk_norm,
        "scale_attn_norm": parts.attention.inner_norm,
        "scale_mlp_norm": parts.mlp.inner_norm,
        "act_layer": parts.mlp.activation if isinstance(parts.mlp, GeluMLPConfig) else "silu",
        "class_token": config.class_token,
        "no_embed_class": parts.no_embed_class,
        "dynamic_img_size": config.dynamic_size,
    }
    if isinstance(parts.norm, RMSNormConfig):
        args["norm_layer"] = "rmsnorm"
    return _Words(architecture, args, Layout())


def _deit(parts: _Parts) -> _Words | str:
    """VisionTransformer's arguments, as far as the distilled class takes them."""
    words = _vit(parts)
    if isinstance(words, str):
        return words
    if words.architecture != "vit_base_patch16_224":
        return "VisionTransformerDistilled has a plain MLP and norms with eps 1e-6"
    if parts.no_embed_class or parts.config.registers or not isinstance(parts.config.pool, ClassPoolConfig):
        return (
            "VisionTransformerDistilled has learned positions for all tokens, no registers, and reads the class token"
        )
    if parts.config.final_norm == "pooled":
        return "VisionTransformerDistilled has its final norm over all tokens"
    return words._replace(architecture="deit_base_distilled_patch16_224")


def _eva(parts: _Parts) -> _Words | str:
    config, gated = parts.config, isinstance(parts.mlp, SwiGLUConfig)
    architectures = {1e-6: "eva02_tiny_patch14_224", 1e-5: "vit_small_patch16_dinov3"}
    if not isinstance(parts.norm, LayerNormConfig) or parts.norm.eps not in architectures:
        return f"Eva has LayerNorm with eps 1e-6 or 1e-5, not {parts.norm.kind} with {parts.norm.eps}"
    if isinstance(parts.mlp, GeluMLPConfig) and parts.mlp.activation != "gelu":
        return f"Eva has the exact GELU, not {parts.mlp.activation}"
    if isinstance(config.pool, AttentionPoolConfig) and (gated or parts.mlp.inner_norm or parts.num_prefix):
        return "Eva's attention pooling has a plain MLP and reads prefix tokens too"
    post = config.norm_placement == "res_post"
    if post and (config.layer_scale is not None or parts.attention.qk_norm):
        return "Eva with norms at the branches' ends has neither LayerScale nor norms on queries and keys"
    rope = _rope_args(parts.rope)
    if isinstance(rope, str):
        return rope
    args = _shared(parts, packed=False) | {
        "attn_type": "rope" if parts.attention.bias == "qkv" else "eva",
        "qkv_fused": True,
        "qk_norm": parts.attention.qk_norm,
        "scale_attn_inner": parts.attention.inner_norm,
        "swiglu_mlp": gated,
        "swiglu_align_to": 0,
        "scale_mlp": parts.mlp.inner_norm,
        "class_token": config.class_token,
        "num_reg_tokens": config.registers,
        "patch_drop_rate": config.patch_drop,
        "no_embed_class": parts.no_embed_class,
        "use_abs_pos_emb": parts.added is not None,
        "use_post_norm": post,
        "use_pre_transformer_norm": config.embed_norm,
        "use_post_transformer_norm": config.final_norm == "tokens",
        "use_fc_norm": config.final_norm == "pooled",
        "dynamic_img_size": config.dynamic_size,
    }
    # Eva packs gate and value in one map, unless there is a norm behind them.
    layout = Layout(gammas=True, separate_gate=gated and parts.mlp.inner_norm)
    return _Words(architectures[parts.norm.eps], args | rope, layout)


def _rope_args(rope: RopeConfig | None) -> dict[str, Any] | str:
    if rope is None:
        return {"use_rot_pos_emb": False}
    dino = rope.coordinates == "centred"
    if dino != (rope.pairs == "halves"):
        return f"Eva has no rotary positions with {rope.coordinates} coordinates and {rope.pairs} as pairs"
    return {
        "use_rot_pos_emb": True,
        "rope_type": "dinov3" if dino else "cat",
        "rope_temperature": rope.theta,
        "rope_rotate_half": dino,
        "ref_feat_shape": list(rope.reference) if rope.reference and not dino else None,
    }


def _beit(parts: _Parts) -> _Words | str:
    config = parts.config
    attention, mlp, final = parts.attention, parts.mlp, (_POOLS[type(config.pool)], config.final_norm)
    if parts.rope is not None or not config.class_token or config.registers or config.embed_norm:
        return (
            "Beit has one class token before the patches, and neither rotary positions nor a norm over tokens at first"
        )
    if attention.bias == "qkv" or attention.qk_norm or attention.inner_norm or config.norm_placement != "pre":
        return "Beit's attention has no bias on keys and no norms inside"
    if parts.norm != LayerNormConfig(eps=1e-6) or (isinstance(mlp, GeluMLPConfig) and mlp.activation != "gelu"):
        return "Beit has LayerNorm with eps 1e-6 and the exact GELU"
    if final not in (("avg", "pooled"), ("token", "tokens")) or config.dynamic_size:
        return "Beit pools the mean before its final norm or the class token after it, at one image size"
    rows, columns = config.grid(config.image_size)
    if rows != columns or (parts.added is not None and parts.no_embed_class):
        return f"Beit's tables are of a square grid, not {rows} x {columns}, and positions are the class token's too"
    gated = isinstance(mlp, SwiGLUConfig)
    args = _shared(parts, packed=False) | {
        "swiglu_mlp": gated,
        "scale_mlp": mlp.inner_norm,
        "use_abs_pos_emb": parts.added is not None,
        "use_rel_pos_bias": True,
        "use_shared_rel_pos_bias": False,
    }
    return _Words("beit_base_patch16_224", args, Layout(gammas=True, separate_gate=gated))


def _shared(parts: _Parts, *, packed: bool) -> dict[str, Any]:
    """The arguments that all of timm's classes have; `packed`: the width of the MLP counts gate and value."""
    config, mlp = parts.config, parts.mlp
    hidden = (mlp.hidden or int(config.dim * mlp.ratio)) * (2 if packed else 1)
    ratio = hidden / config.dim
    return {
        "img_size": list(config.image_size),
        "patch_size": list(parts.patch.size),
        "in_chans": config.channels,
        "global_pool": _POOLS[type(config.pool)],
        "embed_dim": config.dim,
        "depth": config.depth,
        "num_heads": config.num_heads,
        # timm truncates dim * ratio; half a row more keeps a rounding error from costing one.
        "mlp_ratio": ratio if int(config.dim * ratio) == hidden else (hidden + 0.5) / config.dim,
        "qkv_bias": parts.attention.bias != "none",
        "init_values": config.layer_scale or (None if config.layer_scale is None else 1e-5),
        "pos_drop_rate": config.dropout,
        "proj_drop_rate": config.dropout,
        "attn_drop_rate": parts.attention.dropout,
        "drop_path_rate": config.drop_path,
    }


def _computed(model: ViT, parts: _Parts) -> dict[str, Tensor]:
    """Tensors that timm stores and vitrail does not: a table of fixed positions, a zero bias of the head."""
    tensors: dict[str, Tensor] = {}
    for position in model.position:
        if isinstance(position, FixedPosition):
            tensors["pos_embed"] = position.table[None]
    if parts.config.num_classes and not parts.config.head_bias:
        zeros = torch.zeros(parts.config.num_classes, dtype=model.head.weight.dtype)  # type: ignore[arg-type]
        tensors |= {"head.bias": zeros, "head_dist.bias": zeros.clone()} if parts.distilled else {"head.bias": zeros}
    return tensors


def _hub_config(model: ViT, words: _Words) -> Mapping[str, Any]:
    """The config.json of timm's hub format."""
    config = model.config
    distilled = "distilled" in words.architecture
    pretrained: dict[str, Any] = {
        "input_size": [config.channels, *config.image_size],
        "fixed_input_size": not config.dynamic_size,
        "num_classes": config.num_classes,
        "first_conv": "patch_embed.proj",
        "classifier": ["head", "head_dist"] if distilled else "head",
    }
    labels = {"label_names": list(model.labels)} if model.labels else {}
    return {
        "architecture": words.architecture,
        "num_classes": config.num_classes,
        "num_features": config.dim,
        "global_pool": words.args["global_pool"],
        "model_args": words.args,
        **labels,
        "pretrained_cfg": pretrained,
    }
