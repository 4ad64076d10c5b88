"""MobileViTs of timm and Hugging Face."""

from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.errors import Unsupported
from vitrail.models.checkpoint.dialect import Rule, conv_norm, linear, rule
from vitrail.models.checkpoint.translation import Translation, only, timm_card
from vitrail.models.mobilevit import MobileViTConfig

_HF_DEPTHS, _HF_TRANSFORMERS = (1, 3, 1, 1, 1), (2, 4, 3)  # which its config.json has no word for


def _timm(config: MobileViTConfig) -> list[Rule]:
    def layer(ours: str, theirs: str) -> list[Rule]:
        return conv_norm(ours, f"{theirs}.conv", f"{theirs}.bn")

    rules = [*layer("stem", "stem"), *layer("final", "final_conv"), *linear("head", "head.fc")]
    plain = len(config.depths) - len(config.attention_depths)
    for stage, depth in enumerate(config.depths):
        for block in range(depth):
            ours, theirs = f"stages.{stage}.blocks.{block}", f"stages.{stage}.{block}"
            for mine, other in (("expand", "conv1_1x1"), ("filter", "conv2_kxk"), ("project", "conv3_1x1")):
                rules += layer(f"{ours}.{mine}", f"{theirs}.{other}")
        if stage >= plain:
            ours, theirs = f"stages.{stage}.blocks.{depth}", f"stages.{stage}.{depth}"
            for mine, other in (("local", "conv_kxk"), ("narrow", "conv_proj"), ("fuse", "conv_fusion")):
                rules += layer(f"{ours}.{mine}", f"{theirs}.{other}")
            rules += [
                rule(f"{ours}.widen.weight", f"{theirs}.conv_1x1.weight"),
                *linear(f"{ours}.norm", f"{theirs}.norm"),
            ]
            for inner in (f"transformer.{index}" for index in range(config.attention_depths[stage - plain])):
                for part in ("norm1", "norm2", "mlp.fc1", "mlp.fc2"):
                    rules += linear(f"{ours}.{inner}.{part}", f"{theirs}.{inner}.{part}")
                rules += linear(f"{ours}.{inner}.attention.qkv", f"{theirs}.{inner}.attn.qkv")
                rules += linear(f"{ours}.{inner}.attention.projection", f"{theirs}.{inner}.attn.proj")
    return rules


def _hf_layer(ours: str, theirs: str) -> list[Rule]:
    return conv_norm(ours, f"{theirs}.convolution", f"{theirs}.normalization")


def _hf(config: MobileViTConfig) -> list[Rule]:
    body = "mobilevit." if config.num_classes else ""  # without a head there is no prefix
    rules = [*_hf_layer("stem", f"{body}conv_stem"), *_hf_layer("final", f"{body}conv_1x1_exp")]
    rules += linear("head", "classifier")
    plain = len(config.depths) - len(config.attention_depths)
    for stage, depth in enumerate(config.depths):
        theirs = f"{body}encoder.layer.{stage}"
        for block in range(depth):
            residual = f"{theirs}.layer.{block}" if stage < plain else f"{theirs}.downsampling_layer"
            for mine, other in (("expand", "expand_1x1"), ("filter", "conv_3x3"), ("project", "reduce_1x1")):
                rules += _hf_layer(f"stages.{stage}.blocks.{block}.{mine}", f"{residual}.{other}")
        if stage >= plain:
            rules += _hf_transformer(f"stages.{stage}.blocks.{depth}", theirs, config.attention_depths[stage - plain])
    return rules


def _hf_transformer(ours: str, theirs: str, depth: int) -> list[Rule]:
    rules = [rule(f"{ours}.widen.weight", f"{theirs}.conv_1x1.convolution.weight")]
    rules += linear(f"{ours}.norm", f"{theirs}.layernorm")
    for mine, other in (("local", "conv_kxk"), ("narrow", "conv_projection"), ("fuse", "fusion")):
        rules += _hf_layer(f"{ours}.{mine}", f"{theirs}.{other}")
    for index in range(depth):
        block, layer = f"{ours}.transformer.{index}", f"{theirs}.transformer.layer.{index}"
        parts = [f"{layer}.attention.attention.{part}" for part in ("query", "key", "value")]
        rules += [
            *linear(f"{block}.norm1", f"{layer}.layernorm_before"),
            *linear(f"{block}.attention.qkv", *parts),
            *linear(f"{block}.attention.projection", f"{layer}.attention.output.dense"),
            *linear(f"{block}.norm2", f"{layer}.layernorm_after"),
            *linear(f"{block}.mlp.fc1", f"{layer}.intermediate.dense"),
            *linear(f"{block}.mlp.fc2", f"{layer}.output.dense"),
        ]
    return rules


def _widths(neck: Sequence[int]) -> Mapping[str, Any]:
    stem, *dims, final = neck
    return {"stem_dim": stem, "dims": dims, "final_dim": final}


def _hf_config(config: MobileViTConfig) -> Mapping[str, Any]:
    if (config.depths, config.attention_depths) != (_HF_DEPTHS, _HF_TRANSFORMERS):
        raise Unsupported(
            f"Hugging Face's MobileViT has {_HF_DEPTHS} blocks in its stages and transformers of {_HF_TRANSFORMERS}; "
            f"this one has {config.depths} and {config.attention_depths}"
        )
    return {
        "model_type": "mobilevit",
        "architectures": ["MobileViTForImageClassification" if config.num_classes else "MobileViTModel"],
        "image_size": list(config.image_size),
        "num_channels": config.channels,
        "num_labels": config.num_classes,
        "hidden_sizes": list(config.attention_dims),
        "neck_hidden_sizes": [config.stem_dim, *config.dims, config.final_dim],
        "num_attention_heads": config.attention_heads,
        "expand_ratio": float(config.expansion),
    }


TIMM = Translation(
    peer="timm",
    family="mobilevit",
    marks=("stem.conv.weight", "stages.2.1.conv_kxk.conv.weight", "stages.2.1.conv_fusion.conv.weight"),
    rules=_timm,
    options={},
    describe=timm_card,
)
HF = Translation(
    peer="hf",
    family="mobilevit",
    kind="mobilevit",
    base="mobilevit_s",
    marks=("mobilevit.conv_stem.convolution.weight", "mobilevit.encoder.layer.2.conv_kxk.convolution.weight"),
    rules=_hf,
    options={
        "image_size": "image_size",
        "num_channels": "channels",
        "hidden_sizes": "attention_dims",
        "neck_hidden_sizes": _widths,
        "num_attention_heads": "attention_heads",
        "expand_ratio": lambda ratio: {"expansion": int(ratio)},
        "mlp_ratio": only("mlp_ratio", 2.0),
        "hidden_act": only("hidden_act", "silu"),
        "patch_size": only("patch_size", 2),
        "conv_kernel_size": only("conv_kernel_size", 3),
        "output_stride": only("output_stride", 32),
        "qkv_bias": only("qkv_bias", True),
        "layer_norm_eps": only("layer_norm_eps", 1e-5),
    },
    describe=_hf_config,
)
