"""EfficientFormers of timm."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from vitrail.errors import Unsupported
from vitrail.layers.attention.biased import offset_index
from vitrail.models.backbone import Backbone
from vitrail.models.checkpoint.dialect import Foreign, Rule, batch_norm, linear, rule
from vitrail.models.checkpoint.translation import Translation
from vitrail.models.efficientformer import EfficientFormerConfig

GRID = (7, 7)  # the one on which all of timm's EfficientFormers attend


def _conv_norm(ours: str, conv: str, norm: str) -> Iterator[Rule]:
    yield from linear(f"{ours}.conv", conv)
    yield from batch_norm(f"{ours}.norm", norm)


def _timm(config: EfficientFormerConfig) -> Iterator[Rule]:
    if config.fused:
        raise Unsupported("timm's EfficientFormers keep their norms; convert the model before it is fused")
    for index in (1, 2):
        yield from _conv_norm(f"stem.{index - 1}", f"stem.conv{index}", f"stem.norm{index}")
    for stage, depth in enumerate(config.depths):
        here, last = f"stages.{stage}", stage == len(config.depths) - 1
        yield from _conv_norm(f"{here}.downsample", f"{here}.downsample.conv", f"{here}.downsample.norm")
        pooling = max(depth - config.attention_blocks, 0) if last else depth
        for index in range(pooling):
            yield from _pool_block(f"{here}.blocks.{index}")
        for index in range(pooling, depth):
            # timm counts the step from maps to tokens as a block.
            yield from _attention_block(f"{here}.blocks.{index}", f"{here}.blocks.{index + 1}")
    for ours, theirs in (("norm", "norm"), ("head", "head"), ("distillation_head", "head_dist")):
        yield from linear(ours, theirs)


def _pool_block(block: str) -> Iterator[Rule]:
    for index, place in ((1, 0), (2, 2)):
        yield from _conv_norm(f"{block}.mlp.{place}", f"{block}.mlp.fc{index}", f"{block}.mlp.norm{index}")
        yield rule(f"{block}.scale{index}.layer.gain", f"{block}.ls{index}.gamma")


def _attention_block(ours: str, theirs: str) -> Iterator[Rule]:
    yield rule(f"{ours}.attention.bias.table", f"{theirs}.token_mixer.attention_biases")
    yield from linear(f"{ours}.attention.qkv", f"{theirs}.token_mixer.qkv")
    yield from linear(f"{ours}.attention.projection", f"{theirs}.token_mixer.proj")
    for index in (1, 2):
        yield from linear(f"{ours}.norm{index}", f"{theirs}.norm{index}")
        yield from linear(f"{ours}.mlp.fc{index}", f"{theirs}.mlp.fc{index}")
        yield rule(f"{ours}.scale{index}.gain", f"{theirs}.ls{index}.gamma")


def _describe(config: EfficientFormerConfig) -> Mapping[str, Any]:
    if (grid := config.grid(config.image_size)) != GRID:
        raise Unsupported(f"timm's EfficientFormers attend on a grid of 7 x 7, this one on {grid[0]} x {grid[1]}")
    args = {
        "depths": list(config.depths),
        "embed_dims": list(config.dims),
        "num_vit": config.attention_blocks,
        "mlp_ratios": config.mlp_ratio,
        "in_chans": config.channels,
    }
    return {
        "architecture": "efficientformer_l1",
        "num_classes": config.num_classes,
        "model_args": args,
        "pretrained_cfg": {
            "input_size": [config.channels, *config.image_size],
            "num_classes": config.num_classes,
            "fixed_input_size": True,
        },
    }


class _WithIndex(Translation):
    """timm keeps the index of its attention biases among the weights, and wants it back."""

    def write(self, model: Backbone) -> Foreign:
        """The model in timm's format, with its config.json."""
        foreign, end = super().write(model), ".attention_biases"
        tables = [name.removesuffix(end) for name in foreign.tensors if name.endswith(end)]
        index = {f"{name}.attention_bias_idxs": offset_index(GRID, stride=1) for name in tables}
        return replace(foreign, tensors={**foreign.tensors, **index})


TIMM = _WithIndex(
    peer="timm",
    family="efficientformer",
    marks=("stem.conv1.weight", "stages.0.blocks.0.mlp.norm1.running_mean", "head_dist.weight"),
    rules=_timm,
    options={
        "depths": "depths",
        "embed_dims": "dims",
        "num_vit": "attention_blocks",
        "mlp_ratios": "mlp_ratio",
    },
    describe=_describe,
    ignored=r".*\.attention_bias_idxs",  # computed, not learned
)
