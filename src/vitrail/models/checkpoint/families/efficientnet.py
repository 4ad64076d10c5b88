"""EfficientNets of timm, of Hugging Face, and of the PyTorch packages that hold the authors' weights."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vitrail.errors import Unsupported
from vitrail.models.checkpoint.dialect import Rule, conv_norm, linear
from vitrail.models.checkpoint.translation import Translation, only, timm_card
from vitrail.models.efficientnet import GROUPS, SCALES, EfficientNetConfig, scaled


def _timm(config: EfficientNetConfig) -> list[Rule]:
    rules = [
        *conv_norm("stem", "conv_stem", "bn1"),
        *conv_norm("final", "conv_head", "bn2"),
        *linear("head", "classifier"),
    ]
    for ours, group, index in _blocks(config):
        rules += _timm_block(ours, f"blocks.{group}.{index}", expands=GROUPS[group][2] > 1, lite=config.lite)
    return rules


def _blocks(config: EfficientNetConfig) -> Iterator[tuple[str, int, int]]:
    """Our name of every block, its group, and its number there."""
    stage, block = -1, 0
    for group, depth in enumerate(config.depths):
        if GROUPS[group][1] == 2 or group == 0:
            stage, block = stage + 1, 0
        for index in range(depth):
            yield f"stages.{stage}.blocks.{block}", group, index
            block += 1


def _timm_block(ours: str, theirs: str, *, expands: bool, lite: bool) -> list[Rule]:
    layers = {"expand": "conv_pw", "filter": "conv_dw", "project": "conv_pwl"}
    if not expands:
        layers = {"filter": "conv_dw", "project": "conv_pw"}
    rules = list[Rule]()
    for part in () if lite else ("reduce", "expand"):
        rules += linear(f"{ours}.squeeze.{part}", f"{theirs}.se.conv_{part}")
    for number, (layer, conv) in enumerate(layers.items(), start=1):
        rules += conv_norm(f"{ours}.{layer}", f"{theirs}.{conv}", f"{theirs}.bn{number}")
    return rules


def _hf(config: EfficientNetConfig) -> list[Rule]:
    body = "efficientnet." if config.num_classes else ""  # without a head there is no prefix
    rules = [
        *conv_norm("stem", f"{body}embeddings.convolution", f"{body}embeddings.batchnorm"),
        *conv_norm("final", f"{body}encoder.top_conv", f"{body}encoder.top_bn"),
        *linear("head", "classifier"),
    ]
    for number, (ours, _, _) in enumerate(_blocks(config)):
        theirs = f"{body}encoder.blocks.{number}"
        for part in ("reduce", "expand"):
            rules += linear(f"{ours}.squeeze.{part}", f"{theirs}.squeeze_excite.{part}")
        for layer, place, name in (
            ("expand", "expansion", "expand"),
            ("filter", "depthwise_conv", "depthwise"),
            ("project", "projection", "project"),
        ):
            norm = "depthwise_norm" if layer == "filter" else f"{name}_bn"
            rules += conv_norm(f"{ours}.{layer}", f"{theirs}.{place}.{name}_conv", f"{theirs}.{place}.{norm}")
    return rules


def _authors(config: EfficientNetConfig) -> list[Rule]:
    """The names of `efficientnet_pytorch` and `efficientnet_lite_pytorch`."""
    rules = [
        *conv_norm("stem", "_conv_stem", "_bn0"),
        *conv_norm("final", "_conv_head", "_bn1"),
        *linear("head", "_fc"),
    ]
    for number, (ours, group, _) in enumerate(_blocks(config)):
        theirs = f"_blocks.{number}"
        for part in () if config.lite else ("reduce", "expand"):
            rules += linear(f"{ours}.squeeze.{part}", f"{theirs}._se_{part}")
        layers = {
            "expand": ("_expand_conv", "_bn0"),
            "filter": ("_depthwise_conv", "_bn1"),
            "project": ("_project_conv", "_bn2"),
        }
        for layer, (conv, norm) in layers.items():
            if layer != "expand" or GROUPS[group][2] > 1:
                rules += conv_norm(f"{ours}.{layer}", f"{theirs}.{conv}", f"{theirs}.{norm}")
    return rules


def _padded(said: Mapping[str, Any], config: EfficientNetConfig) -> Mapping[str, Any]:
    """Padding as TensorFlow's "same" for the image size: even sizes after the pixels, odd ones around them."""
    after, side = [], config.image_size[0]
    for _ in range(config.num_levels):
        after.append(side % 2 == 0)
        side = (side + 1) // 2
    return {"pad_after": tuple(after), "eps": 1e-3}


class _HuggingFace(Translation):
    """Sizes are given by factors, and paddings by block numbers, which depend on them: all are read at once."""

    def _said(self, beside: Mapping[str, Any]) -> Mapping[str, Any]:
        given = {key: beside.get(key, default) for key, default in _DEFAULTS.items()}
        return {**super()._said(beside), "shape": given} if "model_type" in beside else super()._said(beside)


# What transformers takes where config.json is silent.
_DEFAULTS = {"width_coefficient": 2.0, "depth_coefficient": 3.1, "depthwise_padding": (), "batch_norm_eps": 1e-3}


def _shape(given: Mapping[str, Any]) -> Mapping[str, Any]:
    shape = scaled(given["width_coefficient"], given["depth_coefficient"])
    after = tuple(number not in given["depthwise_padding"] for number in _halving(shape["depths"]))
    return {**shape, "eps": given["batch_norm_eps"], "pad_after": (True, *after)}


def _halving(depths: Sequence[int]) -> list[int]:
    """The numbers of the blocks that halve the size."""
    return [sum(depths[:group]) for group, (_, stride, _) in enumerate(GROUPS) if stride == 2]


def _hf_config(config: EfficientNetConfig) -> Mapping[str, Any]:
    if config.lite:
        raise Unsupported("Hugging Face has no EfficientNet-Lite")
    if not config.pad_after[0]:
        raise Unsupported("Hugging Face's EfficientNet pads its first convolution at the bottom and right only")
    for wider, deeper, _ in SCALES.values():
        if all(getattr(config, name) == value for name, value in scaled(wider, deeper).items()):
            around = zip(_halving(config.depths), config.pad_after[1:], strict=True)
            return {
                "model_type": "efficientnet",
                "architectures": [f"EfficientNet{'ForImageClassification' if config.num_classes else 'Model'}"],
                "image_size": list(config.image_size),
                "num_channels": config.channels,
                "num_labels": config.num_classes,
                "width_coefficient": wider,
                "depth_coefficient": deeper,
                "hidden_dim": config.final_dim,
                "batch_norm_eps": config.eps,
                "depthwise_padding": [number for number, after in around if not after],
            }
    raise Unsupported("Hugging Face's EfficientNets are scaled by two factors; only b0 to b7 can be converted")


TIMM = Translation(
    peer="timm",
    family="efficientnet",
    marks=("conv_stem.weight", "blocks.0.0.conv_dw.weight", "blocks.6.0.conv_pwl.weight", "conv_head.weight"),
    rules=_timm,
    options={},
    describe=timm_card,
)
HF = _HuggingFace(
    peer="hf",
    family="efficientnet",
    kind="efficientnet",
    base="efficientnet_b7",
    marks=("efficientnet.embeddings.convolution.weight", "efficientnet.encoder.blocks.0.squeeze_excite.reduce.weight"),
    rules=_hf,
    options={
        "image_size": "image_size",
        "num_channels": "channels",
        "shape": _shape,
        "hidden_act": only("hidden_act", "swish", "silu"),
        "depth_divisor": only("depth_divisor", 8),
        "pooling_type": only("pooling_type", "mean"),
        "squeeze_expansion_ratio": only("squeeze_expansion_ratio", 0.25),
        "kernel_sizes": only("kernel_sizes", [kernel for kernel, _, _ in GROUPS]),
        "strides": only("strides", [stride for _, stride, _ in GROUPS]),
        "expand_ratios": only("expand_ratios", [expansion for _, _, expansion in GROUPS]),
    },
    describe=_hf_config,
)
AUTHORS = Translation(
    peer="authors",
    family="efficientnet",
    marks=("_conv_stem.weight", "_blocks.0._depthwise_conv.weight", "_conv_head.weight", "_bn1.weight"),
    rules=_authors,
    options={},
    together=_padded,
)
