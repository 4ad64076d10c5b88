"""Swin and Swin v2 of timm and of Hugging Face."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vitrail.config import apply
from vitrail.errors import CheckpointError, Unsupported
from vitrail.layers.attention import WindowConfig
from vitrail.layers.attention.window import Padding, fitting
from vitrail.layers.mlp import GeluMLPConfig
from vitrail.layers.norm import LayerNormConfig
from vitrail.layers.patch import LinearPatchConfig
from vitrail.models.checkpoint.dialect import Rule, linear, rule
from vitrail.models.checkpoint.translation import Translation, only, sized_timm_card
from vitrail.models.swin import SwinConfig
from vitrail.models.swin_v2 import SWIN_V2, SwinV2Config


def _timm_rules(config: SwinConfig) -> Iterator[Rule]:
    yield from linear("stem.patch.projection", "patch_embed.proj")
    yield from linear("stem.norm", "patch_embed.norm")
    for stage, depth in enumerate(config.depths):
        ours, theirs = f"stages.{stage}", f"layers.{stage}"
        yield from _merge(f"{ours}.downsample", f"{theirs}.downsample")
        for index in range(depth):
            yield from _timm_block(f"{ours}.blocks.{index}", f"{theirs}.blocks.{index}")
    yield from linear("norm", "norm")
    yield from linear("head", "head.fc")


def _timm_block(ours: str, theirs: str) -> Iterator[Rule]:
    for part in ("norm1", "norm2", "mlp.fc1", "mlp.fc2"):
        yield from linear(f"{ours}.{part}", f"{theirs}.{part}")
    yield from linear(f"{ours}.attention.qkv", f"{theirs}.attn.qkv")
    yield rule(f"{ours}.attention.qv_bias", f"{theirs}.attn.q_bias", f"{theirs}.attn.v_bias", stack=True)
    yield from linear(f"{ours}.attention.projection", f"{theirs}.attn.proj")
    yield rule(f"{ours}.attention.relative.table", f"{theirs}.attn.relative_position_bias_table")
    yield rule(f"{ours}.attention.log_scale", f"{theirs}.attn.logit_scale", trail=2)
    yield from linear(f"{ours}.attention.relative.fc1", f"{theirs}.attn.cpb_mlp.0")
    yield rule(f"{ours}.attention.relative.fc2.weight", f"{theirs}.attn.cpb_mlp.2.weight")


def _hf_rules(config: SwinConfig, name: str) -> Iterator[Rule]:
    body = f"{name}." if config.num_classes else ""  # without a head there is no prefix
    yield from linear("stem.patch.projection", f"{body}embeddings.patch_embeddings.projection")
    yield from linear("stem.norm", f"{body}embeddings.norm")
    for stage, depth in enumerate(config.depths):
        layer = f"{body}encoder.layers.{stage}"
        yield from _merge(f"stages.{stage + 1}.downsample", f"{layer}.downsample")
        for index in range(depth):
            yield from _hf_block(f"stages.{stage}.blocks.{index}", f"{layer}.blocks.{index}")
    yield from linear("norm", f"{body}layernorm")
    yield from linear("head", "classifier")


def _hf_block(ours: str, theirs: str) -> Iterator[Rule]:
    own = f"{theirs}.attention.self"
    yield from linear(f"{ours}.norm1", f"{theirs}.layernorm_before")
    yield from linear(f"{ours}.attention.qkv", f"{own}.query", f"{own}.key", f"{own}.value")
    yield rule(f"{ours}.attention.qv_bias", f"{own}.query.bias", f"{own}.value.bias", stack=True)
    yield from linear(f"{ours}.attention.projection", f"{theirs}.attention.output.dense")
    yield rule(f"{ours}.attention.relative.table", f"{own}.relative_position_bias_table")
    yield rule(f"{ours}.attention.log_scale", f"{own}.logit_scale", trail=2)
    yield from linear(f"{ours}.attention.relative.fc1", f"{own}.continuous_position_bias_mlp.0")
    yield rule(f"{ours}.attention.relative.fc2.weight", f"{own}.continuous_position_bias_mlp.2.weight")
    yield from linear(f"{ours}.norm2", f"{theirs}.layernorm_after")
    yield from linear(f"{ours}.mlp.fc1", f"{theirs}.intermediate.dense")
    yield from linear(f"{ours}.mlp.fc2", f"{theirs}.output.dense")


def _merge(ours: str, theirs: str) -> Iterator[Rule]:
    yield from linear(f"{ours}.norm", f"{theirs}.norm")
    yield rule(f"{ours}.reduction.weight", f"{theirs}.reduction.weight")


def _doubled(dim: int, stages: int) -> tuple[int, ...]:
    return tuple(dim * 2**stage for stage in range(stages))


def _widths(said: Mapping[str, Any], config: SwinConfig) -> Mapping[str, Any]:
    """Each stage is twice as wide as the last, however many there are."""
    if "embed_dim" not in said and "depths" not in said:
        return {}
    return {"dims": _doubled(said.get("embed_dim", config.dims[0]), len(said.get("depths", config.depths)))}


def _hf_config(config: SwinConfig, kind: str) -> Mapping[str, Any]:
    attention, mlp, patch, dim = config.attention, config.mlp, config.patch, config.dims[0]
    if not isinstance(attention, WindowConfig) or not isinstance(mlp, GeluMLPConfig):
        raise Unsupported("Hugging Face's Swin has windows and an MLP with GELU in every block")
    if not isinstance(patch, LinearPatchConfig):
        raise Unsupported("Hugging Face's Swin supports linear patch embedding only")
    window, pixels = attention.size[0], patch.size[0]
    given = apply(
        replace(
            config,
            dims=_doubled(dim, len(config.depths)),
            mlp=GeluMLPConfig(ratio=mlp.ratio),
            norm=LayerNormConfig(eps=1e-5),
        ),
        {"patch": LinearPatchConfig(size=(pixels, pixels)), "attention": {"size": window, "shift": True}},
    )
    if given != config:
        raise Unsupported("Hugging Face's Swin has square windows and patches, and stages twice as wide as the last")
    _check_padding(config, attention, theirs="before_shift")
    name = {"swin": "Swin", "swinv2": "Swinv2"}[kind]
    return {
        "model_type": kind,
        "architectures": [f"{name}ForImageClassification" if config.num_classes else f"{name}Model"],
        "image_size": list(config.image_size),
        "patch_size": pixels,
        "num_channels": config.channels,
        "num_labels": config.num_classes,
        "embed_dim": dim,
        "depths": list(config.depths),
        "num_heads": list(config.num_heads),
        "window_size": window,
        "mlp_ratio": mlp.ratio,
        **_trained(config),
    }


def _timm_config(config: SwinConfig) -> Mapping[str, Any]:
    if not isinstance(config.attention, WindowConfig):
        raise Unsupported("timm's Swin has windows in every block")
    _check_padding(config, config.attention, theirs="after_shift")
    preset = apply(config, {"attention": {"padding": WindowConfig.padding}})
    given: Mapping[str, Any] = {}
    if isinstance(preset, SwinV2Config) and preset.trained_windows not in _PRESET_WINDOWS:
        preset, given = replace(preset, trained_windows=()), _trained(config)
    card = sized_timm_card(preset)
    return {**card, "model_args": card["model_args"] | given}


def _check_padding(config: SwinConfig, attention: WindowConfig, *, theirs: Padding) -> None:
    """Refuses a model that pads the grid of some stage, and otherwise than the peer does."""
    grids = config.grids(config.image_size)
    sides = [side for grid in grids for side in zip(grid, fitting(attention.size, grid), strict=True)]
    filled = all(length % part == 0 for length, part in sides)
    if attention.padding != theirs and not filled:
        peer, when = _PADS[theirs]
        raise Unsupported(
            f"windows of {attention.size[0]} do not fill the grids of {config.image_size}, and {peer}'s Swin pads "
            f'these {when} it shifts them; this model has padding "{attention.padding}"'
        )


_PADS = {"before_shift": ("Hugging Face", "before"), "after_shift": ("timm", "after")}
_PRESET_WINDOWS = {
    preset.config.trained_windows for preset in SWIN_V2.presets.values() if isinstance(preset.config, SwinV2Config)
}


def _trained(config: SwinConfig) -> Mapping[str, Any]:
    """The entry of both peers for windows that the biases were trained in, if they differ from the model's."""
    if not isinstance(config, SwinV2Config) or not config.trained_windows:
        return {}
    if any(rows != columns for rows, columns in config.trained_windows):
        raise Unsupported("timm and Hugging Face support square trained_windows only")
    return {"pretrained_window_sizes": [rows for rows, _ in config.trained_windows]}


def _trained_windows(sizes: Sequence[int]) -> Mapping[str, Any]:
    if any(sizes) and not all(sizes):
        raise CheckpointError(f"pretrained_window_sizes is {sizes!r}; it must have one size for each stage, or none")
    return {"trained_windows": tuple(sizes) if any(sizes) else ()}


Options = dict[str, str | Callable[[Any], Mapping[str, Any]] | None]

_BOTH: Options = {
    "depths": "depths",
    "num_heads": "num_heads",
    "embed_dim": None,  # with depths, by _widths
    "mlp_ratio": lambda ratio: {"mlp": {"ratio": ratio}},
    "qkv_bias": only("qkv_bias", True),
}
_SECOND: Options = {"pretrained_window_sizes": _trained_windows}
_TIMM: Options = _BOTH | {
    "window_size": lambda size: {"attention": {"size": size}},
    "always_partition": only("always_partition", False),
    "strict_img_size": None,
}
_HF: Options = _BOTH | {
    "window_size": lambda size: {"attention": {"size": size}},
    "image_size": "image_size",
    "patch_size": lambda size: {"patch": {"size": size}},
    "num_channels": "channels",
    "hidden_act": only("hidden_act", "gelu"),
    "layer_norm_eps": only("layer_norm_eps", 1e-5),
    "use_absolute_embeddings": only("use_absolute_embeddings", False),
}
# Older files hold tables that are computed.
_COMPUTED = r".*\.(relative_position_index|relative_coords_table|attn_mask)"
_ATTENTION = "layers.0.blocks.0.attn"

TIMM = Translation(
    peer="timm",
    family="swin",
    marks=("patch_embed.norm.weight", f"{_ATTENTION}.relative_position_bias_table"),
    rules=_timm_rules,
    options=_TIMM,
    describe=_timm_config,
    ignored=_COMPUTED,
    together=_widths,
    own={"attention": {"padding": "after_shift"}},
)
TIMM_V2 = Translation(
    peer="timm",
    family="swin_v2",
    marks=("patch_embed.norm.weight", f"{_ATTENTION}.logit_scale", f"{_ATTENTION}.cpb_mlp.0.weight"),
    rules=_timm_rules,
    options=_TIMM | _SECOND,
    describe=_timm_config,
    ignored=_COMPUTED,
    together=_widths,
    own={"attention": {"padding": "after_shift"}},
)
HF = Translation(
    peer="hf",
    family="swin",
    kind="swin",
    base="swin_tiny_patch4_window7",
    marks=("swin.encoder.layers.0.blocks.0.attention.self.relative_position_bias_table",),
    rules=lambda config: _hf_rules(config, "swin"),
    options=_HF,
    describe=lambda config: _hf_config(config, "swin"),
    ignored=_COMPUTED,
    together=_widths,
    own={"attention": {"padding": "before_shift"}},
)
HF_V2 = Translation(
    peer="hf",
    family="swin_v2",
    kind="swinv2",
    base="swinv2_tiny_window8",
    marks=("swinv2.encoder.layers.0.blocks.0.attention.self.logit_scale",),
    rules=lambda config: _hf_rules(config, "swinv2"),
    options=_HF | _SECOND,
    describe=lambda config: _hf_config(config, "swinv2"),
    ignored=_COMPUTED,
    together=_widths,
    own={"attention": {"padding": "before_shift"}},
)
