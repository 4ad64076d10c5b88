"""SegFormer of Hugging Face."""

from collections.abc import Mapping
from typing import Any

from vitrail.models.checkpoint.dialect import Rule, conv_norm, linear
from vitrail.models.checkpoint.headed.translation import HeadTranslation, require
from vitrail.models.heads import SegFormerConfig

_LEVELS = 4


def _backbone(about: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same config.json, of the encoder alone."""
    require(about, num_encoder_blocks=_LEVELS, reshape_last_stage=True)
    return {**about, "architectures": ["SegformerModel"]}


def _head(about: Mapping[str, Any]) -> SegFormerConfig:
    return SegFormerConfig(dim=about.get("decoder_hidden_size", 256), dropout=about.get("classifier_dropout_prob", 0.1))


def _rules(config: SegFormerConfig) -> list[Rule]:
    rules = [*conv_norm("fuse", "decode_head.linear_fuse", "decode_head.batch_norm")]
    rules += linear("classifier", "decode_head.classifier")
    for level in range(_LEVELS):
        rules += linear(f"levels.{level}", f"decode_head.linear_c.{level}.proj")
    return rules


SEGFORMER = HeadTranslation(
    kind="segformer",
    architecture="SegformerForSemanticSegmentation",
    task="segment",
    prefix=("segformer.",),
    keep_prefix=True,
    backbone=_backbone,
    head=_head,
    rules=_rules,
)
