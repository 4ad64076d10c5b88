"""EfficientNets of timm."""

from vitrail.models.checkpoint.dialect import Rule, conv_norm, linear
from vitrail.models.checkpoint.translation import Translation, timm_card
from vitrail.models.efficientnet import GROUPS, EfficientNetConfig


def _timm(config: EfficientNetConfig) -> list[Rule]:
    rules = [
        *conv_norm("stem", "conv_stem", "bn1"),
        *conv_norm("final", "conv_head", "bn2"),
        *linear("head", "classifier"),
    ]
    stage, block = -1, 0
    for group, (depth, (_, stride, expansion)) in enumerate(zip(config.depths, GROUPS, strict=True)):
        if stride == 2 or group == 0:
            stage, block = stage + 1, 0
        for index in range(depth):
            rules += _block(f"stages.{stage}.blocks.{block}", f"blocks.{group}.{index}", expands=expansion > 1)
            block += 1
    return rules


def _block(ours: str, theirs: str, *, expands: bool) -> list[Rule]:
    layers = {"expand": "conv_pw", "filter": "conv_dw", "project": "conv_pwl"}
    if not expands:
        layers = {"filter": "conv_dw", "project": "conv_pw"}
    rules = [*linear(f"{ours}.squeeze.reduce", f"{theirs}.se.conv_reduce")]
    rules += linear(f"{ours}.squeeze.expand", f"{theirs}.se.conv_expand")
    for number, (layer, conv) in enumerate(layers.items(), start=1):
        rules += conv_norm(f"{ours}.{layer}", f"{theirs}.{conv}", f"{theirs}.bn{number}")
    return rules


TIMM = Translation(
    peer="timm",
    family="efficientnet",
    marks=("conv_stem.weight", "blocks.0.0.se.conv_reduce.weight", "blocks.6.0.conv_pwl.weight", "conv_head.weight"),
    rules=_timm,
    options={},
    describe=timm_card,
)
