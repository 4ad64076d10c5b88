"""CvT of Hugging Face."""

from collections.abc import Iterator, Mapping
from typing import Any

from vitrail.errors import Unsupported
from vitrail.layers.norm import LayerNormConfig
from vitrail.models.checkpoint.dialect import Rule, conv_norm, linear, rule
from vitrail.models.checkpoint.translation import Translation, only
from vitrail.models.cvt import CvTConfig


def _rules(config: CvTConfig) -> Iterator[Rule]:
    for stage, depth in enumerate(config.depths):
        theirs = f"cvt.encoder.stages.{stage}"
        embed = "stem" if stage == 0 else f"stages.{stage}.downsample"
        yield from linear(f"{embed}.projection", f"{theirs}.embedding.convolution_embeddings.projection")
        yield from linear(f"{embed}.norm", f"{theirs}.embedding.convolution_embeddings.normalization")
        yield rule(f"stages.{stage}.prefix.class_token", f"{theirs}.cls_token", lead=1)
        for index in range(depth):
            yield from _block(f"stages.{stage}.blocks.{index}", f"{theirs}.layers.{index}")
    yield from linear("norm", "layernorm")
    yield from linear("head", "classifier")


def _block(block: str, theirs: str) -> Iterator[Rule]:
    for part, name in {"q": "query", "k": "key", "v": "value"}.items():
        conv = f"{theirs}.attention.attention.convolution_projection_{name}.convolution_projection"
        yield from conv_norm(f"{block}.attention.{part}_conv", f"{conv}.convolution", f"{conv}.normalization")
        yield from linear(f"{block}.attention.{part}", f"{theirs}.attention.attention.projection_{name}")
    yield from linear(f"{block}.attention.projection", f"{theirs}.attention.output.dense")
    yield from linear(f"{block}.norm1", f"{theirs}.layernorm_before")
    yield from linear(f"{block}.norm2", f"{theirs}.layernorm_after")
    yield from linear(f"{block}.mlp.fc1", f"{theirs}.intermediate.dense")
    yield from linear(f"{block}.mlp.fc2", f"{theirs}.output.dense")


def _hf_config(config: CvTConfig) -> Mapping[str, Any]:
    if not config.norm == config.embed_norm == LayerNormConfig(eps=1e-5):
        raise Unsupported("Hugging Face's CvT supports norms with an eps of 1e-5 only")
    return {
        "model_type": "cvt",
        "architectures": ["CvtForImageClassification" if config.num_classes else "CvtModel"],
        "num_channels": config.channels,
        "num_labels": config.num_classes,
        "embed_dim": list(config.dims),
        "depth": list(config.depths),
        "num_heads": list(config.num_heads),
        "mlp_ratio": list(config.mlp_ratios),
    }


HF = Translation(
    peer="hf",
    family="cvt",
    marks=("cvt.encoder.stages.0.embedding.convolution_embeddings.projection.weight",),
    rules=_rules,
    options={
        "num_channels": "channels",
        "embed_dim": "dims",
        "depth": "depths",
        "num_heads": "num_heads",
        "mlp_ratio": "mlp_ratios",
        "qkv_bias": only("qkv_bias", [True, True, True]),
        "cls_token": only("cls_token", [False, False, True]),
        "qkv_projection_method": only("qkv_projection_method", ["dw_bn", "dw_bn", "dw_bn"]),
        "patch_sizes": only("patch_sizes", [7, 3, 3]),
        "patch_stride": only("patch_stride", [4, 2, 2]),
        "patch_padding": only("patch_padding", [2, 1, 1]),
        "kernel_qkv": only("kernel_qkv", [3, 3, 3]),
        "stride_q": only("stride_q", [1, 1, 1]),
        "stride_kv": only("stride_kv", [2, 2, 2]),
        "padding_q": only("padding_q", [1, 1, 1]),
        "padding_kv": only("padding_kv", [1, 1, 1]),
    },
    describe=_hf_config,
    kind="cvt",
    base="cvt_13",
)
