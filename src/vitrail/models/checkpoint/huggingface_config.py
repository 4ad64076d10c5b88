"""Conversion between transformers' config.json and our config, in both directions."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.errors import CheckpointError, Unsupported, nearest
from vitrail.layers.attention import SoftmaxConfig
from vitrail.layers.mlp import GeluMLPConfig, MLPConfig, SwiGLUConfig
from vitrail.layers.norm import LayerNormConfig
from vitrail.layers.patch import LinearPatchConfig
from vitrail.layers.position import LearnedConfig, PositionConfig
from vitrail.layers.relative import RelativeConfig
from vitrail.layers.rope import RopeConfig
from vitrail.models.backbone import Backbone, BackboneConfig
from vitrail.models.checkpoint.dialect import Rule, depth_of, expand
from vitrail.models.checkpoint.huggingface_names import SHARED_RELATIVE, End, Layout
from vitrail.models.checkpoint.shapes import grid_of, patches_of, relative_grid, usual_heads
from vitrail.models.registry import FAMILIES
from vitrail.models.vit import ViTConfig

_ACTIVATIONS = {
    "gelu": "gelu",
    "quick_gelu": "quick_gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_python": "gelu",
    "silu": "silu",
}
# They have another name for dropout, and no labels.
_TOWERS = ("clip_vision_model", "siglip_vision_model", "dinov3_vit")


@dataclass(frozen=True)
class Reader:
    """A checkpoint and all that is known about it."""

    layout: Layout
    end: End
    tensors: Mapping[str, Tensor]
    options: Mapping[str, Any]  # config.json, or the part of it that speaks of images
    path: Path
    hint: BackboneConfig | None
    wanted: tuple[int, int] | None = None  # the image size that the caller gave

    @cached_property
    def gated(self) -> bool:
        """Whether the MLP is a SwiGLU."""
        return any(re.search(r"\.mlp\.(weights_in|gate_proj)\.", name) for name in self.tensors)

    @cached_property
    def rules(self) -> list[Rule]:
        """The rules of this checkpoint."""
        rules = self.layout.choose(gated=self.gated)
        if set(SHARED_RELATIVE.theirs) <= set(self.tensors):
            rules = [each for each in rules if each.ours != SHARED_RELATIVE.ours] + [SHARED_RELATIVE]
        return rules + self.end.rules

    def names(self, ours: str) -> tuple[str, ...]:
        """Their names for one of our tensors, in the first block."""
        return next((each.theirs for each in expand(self.rules, 1) if each.ours == ours), ())

    def has(self, ours: str) -> bool:
        """Whether the checkpoint has one of our tensors, in the first block."""
        return bool(self.names(ours)) and all(name in self.tensors for name in self.names(ours))

    def shape(self, ours: str) -> tuple[int, ...]:
        """The shape of the tensor, or of its first part, that becomes ours."""
        return tuple(self.tensors[self.names(ours)[0]].shape)

    def number(self, key: str, otherwise: Any) -> Any:
        """An option that must be a number of the type of its default."""
        value = self.options.get(key)
        if value is None:
            return otherwise
        if isinstance(value, bool) or not isinstance(value, int | type(otherwise)):
            raise CheckpointError(f"{self.path}: config.json says {key} = {value!r}; it must be a number")
        return value

    def check(self, depth: int) -> None:
        """Refuses options that a plain ViT does not have, and incomplete checkpoints."""
        for option in ("proj_bias", "mlp_bias"):
            if self.options.get(option) is False:
                raise Unsupported(f"{self.path}: config.json says {option} = false, which is not supported")
        if lacking := self.layout.lacking(self.rules, self.tensors, depth, waived=self.end.ignored):
            some = ", ".join(lacking[:8])
            raise CheckpointError(
                f"{self.path} is not a complete {self.end.architecture}: missing ({len(lacking)}): {some}"
            )
        if len(self.shape("patch.projection.weight")) != 4:
            raise Unsupported(f"{self.path}: patches of varying size (NaFlex) are not supported")

    def config(self) -> ViTConfig:
        """Our config of the model."""
        depth = self.number("num_hidden_layers", depth_of(self.tensors, r"(?:encoder\.)?layers?\.(\d+)\."))
        self.check(depth)
        dim, channels, height, width = self.shape("patch.projection.weight")
        head = self.end.heads and f"{self.end.heads[0][0]}.weight"
        registers = self.shape("prefix.registers") if self.has("prefix.registers") else (1, 0)
        scale = self.number("layerscale_value", self.number("layer_scale_init_value", 1.0))
        settings: dict[str, Any] = {
            "dim": self.number("hidden_size", dim),
            "depth": depth,
            "num_heads": self.num_heads(dim),
            "channels": self.number("num_channels", channels),
            "num_classes": self.shape(head)[0] if head else 0,
            "patch": LinearPatchConfig(size=(height, width), bias=self.has("patch.projection.bias")),
            "image_size": self.image_size((height, width)),
            "position": self.position(),
            "class_token": self.has("prefix.class_token"),
            "registers": registers[1] if self.end.family == "vit" else 0,
            "embed_norm": self.has("embed_norm.weight"),
            "attention": self.attention(),
            "mlp": self.mlp(),
            "norm": LayerNormConfig(eps=self.number("layer_norm_eps", self.layout.eps)),
            "layer_scale": float(scale) if self.has("blocks.0.scale1.gain") else None,
            "dropout": float(self.number("hidden_dropout_prob", 0.0)),
            "drop_path": float(self.number("drop_path_rate", 0.0)),
            "final_norm": self.end.final_norm,
            "pool": self.end.pool,
            "head_bias": self.end.head_bias,
            "init": "trunc_normal",
        }
        config: ViTConfig = FAMILIES[self.end.family].config(**settings)  # type: ignore[assignment]
        return config

    def num_heads(self, dim: int) -> int:
        """From the config, a relative table, the model that the caller named, or the usual width of a head."""
        if self.options:
            return int(self.number("num_attention_heads", self.layout.num_heads))
        if self.has("blocks.0.attention.relative.table"):
            return self.shape("blocks.0.attention.relative.table")[1]
        if isinstance(self.hint, ViTConfig):
            return self.hint.num_heads
        return usual_heads(dim, self.path, rotary=self.layout.kind == "dinov3_vit")

    def image_size(self, patch: tuple[int, int]) -> tuple[int, int]:
        """The pixels that become patches; a margin that no patch covers (384 with patches of 14) is not counted."""
        said = self.options.get("image_size")
        if said is not None:
            size = said if isinstance(said, list | tuple) else [said, said]
            if len(size) != 2 or not all(isinstance(side, int) for side in size):
                raise CheckpointError(
                    f"{self.path}: config.json says image_size = {said!r}; it must be one number or two"
                )
        elif self.has("position.0.table"):
            prefix = self.has("prefix.class_token") and self.layout.kind != "dinov2_with_registers"
            patches = self.shape("position.0.table")[-2] - prefix - (self.layout.kind == "deit")
            grid = grid_of(patches, self.path, said=patches_of(self.wanted, patch))
            size = [count * side for count, side in zip(grid, patch, strict=True)]
        elif self.has("blocks.0.attention.relative.table"):
            offsets = self.shape("blocks.0.attention.relative.table")[0] - 3
            grid = relative_grid(offsets, self.path, said=patches_of(self.wanted, patch))
            size = [count * side for count, side in zip(grid, patch, strict=True)]
        else:
            size = self.hint.image_size if self.hint is not None else (224, 224)
        return size[0] // patch[0] * patch[0], size[1] // patch[1] * patch[1]

    def position(self) -> tuple[PositionConfig, ...]:
        """From the position tables in the checkpoint; DINOv3 has none."""
        if self.layout.kind == "dinov3_vit":
            theta = float(self.number("rope_theta", 100.0))
            return (RopeConfig(theta=theta, coordinates="centred", pairs="halves"),)
        found: list[PositionConfig] = []
        if self.has("position.0.table"):
            found.append(LearnedConfig(prefix=self.layout.kind != "dinov2_with_registers"))
        if self.has("blocks.0.attention.relative.table"):
            found.append(RelativeConfig())
        return tuple(found)

    def attention(self) -> SoftmaxConfig:
        """With the biases in the checkpoint."""
        weights = self.names("blocks.0.attention.qkv.weight")
        q, k, v = (name.replace(".weight", ".bias") in self.tensors for name in weights)
        said = self.options.get("qkv_bias", self.options.get("query_bias", q))
        if said != q:
            raise CheckpointError(f"{self.path}: config.json says qkv_bias = {said}; in the tensors it is {q}")
        if q != v or (k and not q):
            raise Unsupported(f"{self.path}: unsupported combination of biases: queries {q}, keys {k}, values {v}")
        dropout = self.number("attention_probs_dropout_prob", self.number("attention_dropout", 0.0))
        bias = ("qkv" if k else "qv") if q else "none"
        return SoftmaxConfig(bias=bias, head_dim=self.number("head_dim", None), dropout=float(dropout))  # type: ignore[arg-type]

    def mlp(self) -> MLPConfig:
        """Gated where the tensors are; the activation as the config says."""
        # The shape of fc2 gives the hidden width of gated and plain MLPs alike.
        hidden = self.shape("blocks.0.mlp.fc2.weight")[1]
        said = self.options.get("hidden_act", "silu" if self.gated else self.layout.activation)
        if self.gated:
            # DINOv2 gates with SiLU whatever its config says.
            if self.layout.kind == "dinov3_vit" and said != "silu":
                raise Unsupported(f"{self.path}: hidden_act of a gated MLP is {said!r}; it must be silu")
            return SwiGLUConfig(hidden=hidden)
        if said not in _ACTIVATIONS:
            raise Unsupported(f"{self.path}: hidden_act {said!r} is not supported; {nearest(str(said), _ACTIVATIONS)}")
        return GeluMLPConfig(hidden=hidden, activation=_ACTIVATIONS[said])  # type: ignore[arg-type]


def labels_of(beside: Mapping[str, Any], num_classes: int, path: Path) -> list[str] | None:
    """The names of the classes; None for the LABEL_0, LABEL_1 ... that transformers fills in."""
    named = beside.get("id2label")
    if not isinstance(named, dict) or num_classes == 0:
        return None
    if set(named) != {str(index) for index in range(num_classes)}:
        raise CheckpointError(f"{path}: config.json names {len(named)} classes; the head has {num_classes}")
    labels = [str(named[str(index)]) for index in range(num_classes)]
    return None if labels == [f"LABEL_{index}" for index in range(num_classes)] else labels


def describe(model: Backbone, config: ViTConfig, layout: Layout, end: End) -> dict[str, Any]:
    """The config.json of a model for the class that `end` names."""
    labels = model.labels or [f"LABEL_{index}" for index in range(config.num_classes)]
    about: dict[str, Any] = {
        "architectures": [end.architecture],
        "model_type": layout.kind,
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "hidden_size": config.dim,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "intermediate_size": mlp_width(config),
        "hidden_act": _activation(config.mlp),
        "layer_norm_eps": getattr(config.norm, "eps", layout.eps),
        "image_size": _square(config.image_size),
        "patch_size": _square(getattr(config.patch, "size", (16, 16))),
        "num_channels": config.channels,
        "hidden_dropout_prob": config.dropout,
        "drop_path_rate": config.drop_path,
        **_options(config, layout.kind),
    }
    dropout = getattr(config.attention, "dropout", 0.0)
    about["attention_dropout" if layout.kind in _TOWERS else "attention_probs_dropout_prob"] = dropout
    if layout.kind not in _TOWERS and config.num_classes:
        about["id2label"] = {str(index): label for index, label in enumerate(labels)}
        about["label2id"] = {label: index for index, label in enumerate(labels)}
    return about


def _options(config: ViTConfig, kind: str) -> dict[str, Any]:
    """The entries of one model type."""
    bias = getattr(config.attention, "bias", "qkv")
    gated = isinstance(config.mlp, SwiGLUConfig)
    if kind == "clip_vision_model":
        return {"projection_dim": config.num_classes or config.dim}
    if kind == "siglip_vision_model":
        return {"vision_use_head": config.pool.kind == "attention"}
    if kind == "beit":
        return {
            "use_relative_position_bias": any(each.kind == "relative" for each in config.position),
            "use_absolute_position_embeddings": any(each.kind == "learned" for each in config.position),
            "use_mean_pooling": config.pool.kind == "mean",
            "layer_scale_init_value": config.layer_scale or 0.0,
        }
    if kind == "dinov3_vit":
        return {
            "use_gated_mlp": gated,
            "num_register_tokens": config.registers,
            "rope_theta": getattr(config.position[0], "theta", 100.0),
            "query_bias": bias != "none",
            "key_bias": bias == "qkv",
            "value_bias": bias != "none",
        }
    if kind.startswith("dinov2"):
        return {
            "qkv_bias": bias == "qkv",
            "use_swiglu_ffn": gated,
            "mlp_ratio": _dinov2_ratio(config, gated=gated),
            "layerscale_value": config.layer_scale,
            "num_register_tokens": config.registers,
        }
    return {"qkv_bias": bias == "qkv"}


def mlp_width(config: ViTConfig) -> int:
    """The hidden width of a config's MLP, whichever way it is given."""
    return getattr(config.mlp, "hidden", None) or int(config.dim * getattr(config.mlp, "ratio", 0))


def _dinov2_ratio(config: ViTConfig, *, gated: bool) -> int:
    """The whole ratio that gives the width of the MLP; gated MLPs have two thirds of it, in multiples of eight."""
    for ratio in range(1, 17):
        plain = config.dim * ratio
        if mlp_width(config) == ((int(plain * 2 / 3) + 7) // 8 * 8 if gated else plain):
            return ratio
    raise Unsupported(
        f"an MLP of {mlp_width(config)} for a width of {config.dim}: transformers' DINOv2 takes whole ratios only"
    )


def _activation(mlp: MLPConfig) -> str:
    if isinstance(mlp, GeluMLPConfig):
        return next(theirs for theirs, ours in _ACTIVATIONS.items() if ours == mlp.activation)
    return "silu"


def _square(size: tuple[int, int]) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)
