"""ResNets of timm, of torchvision by the same names, and of Hugging Face."""

from collections.abc import Mapping
from typing import Any

from vitrail.models.checkpoint.dialect import Rule, conv_norm, linear
from vitrail.models.checkpoint.translation import Translation, only, timm_card
from vitrail.models.resnet import ResNetConfig


def _timm(config: ResNetConfig) -> list[Rule]:
    rules = [*conv_norm("stem.0", "conv1", "bn1"), *linear("head", "fc")]
    for stage, depth in enumerate(config.depths):
        for block in range(depth):
            ours, theirs = f"stages.{stage}.blocks.{block}", f"layer{stage + 1}.{block}"
            for conv in range(3 if config.bottleneck else 2):
                rules += conv_norm(f"{ours}.branch.{conv}", f"{theirs}.conv{conv + 1}", f"{theirs}.bn{conv + 1}")
            rules += conv_norm(f"{ours}.shortcut", f"{theirs}.downsample.0", f"{theirs}.downsample.1")
    return rules


def _hf(config: ResNetConfig) -> list[Rule]:
    body = "resnet." if config.num_classes else ""  # without a head there is no prefix

    def layer(ours: str, theirs: str) -> list[Rule]:
        return conv_norm(ours, f"{body}{theirs}.convolution", f"{body}{theirs}.normalization")

    rules = [*layer("stem.0", "embedder.embedder"), *linear("head", "classifier.1")]
    for stage, depth in enumerate(config.depths):
        for block in range(depth):
            ours, theirs = f"stages.{stage}.blocks.{block}", f"encoder.stages.{stage}.layers.{block}"
            for conv in range(3 if config.bottleneck else 2):
                rules += layer(f"{ours}.branch.{conv}", f"{theirs}.layer.{conv}")
            rules += layer(f"{ours}.shortcut", f"{theirs}.shortcut")
    return rules


def _hf_deep(config: ResNetConfig) -> list[Rule]:
    """RT-DETR's backbone: three convolutions in the stem, means before strided shortcuts."""

    def layer(ours: str, theirs: str) -> list[Rule]:
        return conv_norm(ours, f"{theirs}.convolution", f"{theirs}.normalization")

    convs = range(3 if config.deep_stem else 1)
    rules = [each for index in convs for each in layer(f"stem.{index}", f"embedder.embedder.{index}")]
    rules += linear("head", "classifier.1")
    for stage, depth in enumerate(config.depths):
        for block in range(depth):
            ours, theirs = f"stages.{stage}.blocks.{block}", f"encoder.stages.{stage}.layers.{block}"
            for conv in range(3 if config.bottleneck else 2):
                rules += layer(f"{ours}.branch.{conv}", f"{theirs}.layer.{conv}")
            inner = ".1" if stage and config.average_shortcut else ""
            rules += layer(f"{ours}.shortcut{inner}", f"{theirs}.shortcut{inner}")
    return rules


def _hf_config(config: ResNetConfig) -> Mapping[str, Any]:
    return {
        "model_type": "resnet",
        "architectures": ["ResNetForImageClassification" if config.num_classes else "ResNetModel"],
        "num_channels": config.channels,
        "num_labels": config.num_classes,
        "embedding_size": config.stem_dim,
        "hidden_sizes": list(config.dims),
        "depths": list(config.depths),
        "layer_type": "bottleneck" if config.bottleneck else "basic",
    }


TIMM = Translation(
    peer="timm",
    family="resnet",
    marks=("conv1.weight", "bn1.weight", "layer1.0.conv1.weight", "layer4.0.bn2.weight"),
    rules=_timm,
    options={"layers": "depths", "zero_init_last": "zero_init_last"},
    describe=timm_card,
)
HF = Translation(
    peer="hf",
    family="resnet",
    kind="resnet",
    base="resnet50",
    marks=("resnet.encoder.stages.0.layers.0.layer.0.convolution.weight",),
    rules=_hf,
    options={
        "num_channels": "channels",
        "embedding_size": "stem_dim",
        "hidden_sizes": "dims",
        "depths": "depths",
        "layer_type": lambda kind: {"bottleneck": kind == "bottleneck"},
        "hidden_act": only("hidden_act", "relu"),
        "downsample_in_first_stage": only("downsample_in_first_stage", False),
        "downsample_in_bottleneck": only("downsample_in_bottleneck", False),
    },
    describe=_hf_config,
)
HF_DEEP = Translation(
    peer="hf",
    family="resnet",
    kind="rt_detr_resnet",
    variant="deep",
    base="resnet50",
    marks=("embedder.embedder.2.convolution.weight",),
    rules=_hf_deep,
    options=HF.options,
    own={"deep_stem": True, "average_shortcut": True},
)
