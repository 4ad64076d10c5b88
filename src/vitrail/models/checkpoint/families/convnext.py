"""ConvNeXts of timm, Hugging Face and torchvision."""

from collections.abc import Mapping
from typing import Any

from vitrail.models.checkpoint.dialect import Rule, linear, rule
from vitrail.models.checkpoint.translation import Translation, only, timm_card
from vitrail.models.convnext import ConvNeXtConfig


def _timm(config: ConvNeXtConfig) -> list[Rule]:
    rules = [
        *linear("stem.0", "stem.0"),
        *linear("stem.1.layer", "stem.1"),
        *linear("pool_norm", "head.norm"),
        *linear("head", "head.fc"),
    ]
    # timm keeps the linear maps of its own, smaller sizes as convolutions of 1 x 1.
    trail = 2 if config.dims[0] < 96 else 0
    for stage, depth in enumerate(config.depths):
        rules += linear(f"stages.{stage}.downsample.0.layer", f"stages.{stage}.downsample.0")
        rules += linear(f"stages.{stage}.downsample.1", f"stages.{stage}.downsample.1")
        for block in (f"stages.{stage}.blocks.{index}" for index in range(depth)):
            rules += [*linear(f"{block}.conv", f"{block}.conv_dw"), *linear(f"{block}.norm", f"{block}.norm")]
            for layer in ("mlp.fc1", "mlp.fc2"):
                rules += [rule(f"{block}.{layer}.weight", trail=trail), rule(f"{block}.{layer}.bias")]
            rules.append(rule(f"{block}.scale.gain", f"{block}.gamma"))
    return rules


def _hf(config: ConvNeXtConfig) -> list[Rule]:
    body = "convnext." if config.num_classes else ""  # without a head there is no prefix
    rules = [
        *linear("stem.0", f"{body}embeddings.patch_embeddings"),
        *linear("stem.1.layer", f"{body}embeddings.layernorm"),
        *linear("pool_norm", f"{body}layernorm"),
        *linear("head", "classifier"),
    ]
    for stage, depth in enumerate(config.depths):
        theirs = f"{body}encoder.stages.{stage}"
        rules += linear(f"stages.{stage}.downsample.0.layer", f"{theirs}.downsampling_layer.0")
        rules += linear(f"stages.{stage}.downsample.1", f"{theirs}.downsampling_layer.1")
        for index in range(depth):
            names = ("dwconv", "layernorm", "pwconv1", "pwconv2", "layer_scale_parameter")
            rules += _block(f"stages.{stage}.blocks.{index}", f"{theirs}.layers.{index}", names)
    return rules


def _torchvision(config: ConvNeXtConfig) -> list[Rule]:
    rules = [
        *linear("stem.0", "features.0.0"),
        *linear("stem.1.layer", "features.0.1"),
        *linear("pool_norm", "classifier.0"),
        *linear("head", "classifier.2"),
    ]
    for stage, depth in enumerate(config.depths):
        rules += linear(f"stages.{stage}.downsample.0.layer", f"features.{2 * stage}.0")
        rules += linear(f"stages.{stage}.downsample.1", f"features.{2 * stage}.1")
        for index in range(depth):
            names = ("block.0", "block.2", "block.3", "block.5", "layer_scale")
            rules += _block(f"stages.{stage}.blocks.{index}", f"features.{2 * stage + 1}.{index}", names, trail=2)
    return rules


def _block(ours: str, theirs: str, names: tuple[str, str, str, str, str], trail: int = 0) -> list[Rule]:
    *layers, scale = names
    pairs = zip(("conv", "norm", "mlp.fc1", "mlp.fc2"), layers, strict=True)
    rules = [each for mine, layer in pairs for each in linear(f"{ours}.{mine}", f"{theirs}.{layer}")]
    return [*rules, rule(f"{ours}.scale.gain", f"{theirs}.{scale}", trail=trail)]


def _hf_config(config: ConvNeXtConfig) -> Mapping[str, Any]:
    return {
        "model_type": "convnext",
        "architectures": ["ConvNextForImageClassification" if config.num_classes else "ConvNextModel"],
        "image_size": list(config.image_size),
        "num_channels": config.channels,
        "num_labels": config.num_classes,
        "hidden_sizes": list(config.dims),
        "depths": list(config.depths),
        "layer_norm_eps": config.pool_norm_eps,
        "layer_scale_init_value": config.layer_scale or 0.0,
    }


TIMM = Translation(
    peer="timm",
    family="convnext",
    marks=("stem.1.weight", "stages.0.blocks.0.conv_dw.weight", "stages.1.downsample.1.weight", "head.norm.weight"),
    rules=_timm,
    options={"dims": "dims", "depths": "depths", "conv_mlp": None},
    describe=timm_card,
)
HF = Translation(
    peer="hf",
    family="convnext",
    kind="convnext",
    base="convnext_tiny",
    marks=("convnext.embeddings.patch_embeddings.weight", "convnext.encoder.stages.0.layers.0.dwconv.weight"),
    rules=_hf,
    options={
        "image_size": "image_size",
        "num_channels": "channels",
        "hidden_sizes": "dims",
        "depths": "depths",
        "layer_norm_eps": "pool_norm_eps",
        "layer_scale_init_value": lambda value: {"layer_scale": value or None},
        "hidden_act": only("hidden_act", "gelu"),
        "patch_size": only("patch_size", 4),
    },
    describe=_hf_config,
)
TORCHVISION = Translation(
    peer="torchvision",
    family="convnext",
    marks=("features.0.0.weight", "features.1.0.block.0.weight", "features.1.0.layer_scale", "features.2.1.weight"),
    rules=_torchvision,
    options={},
)
