"""RT-DETR of Hugging Face."""

from collections.abc import Mapping
from typing import Any

from vitrail.models.checkpoint.dialect import Rule, batch_norm, conv_norm, linear, rule
from vitrail.models.checkpoint.headed.detr import attention, decoder_layer, encoder_rest
from vitrail.models.checkpoint.headed.translation import HeadTranslation, Tensors, require
from vitrail.models.heads import RtDetrConfig

_LEVELS = 3


def _backbone(about: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**(about.get("backbone_config") or {}), "architectures": ["AutoBackbone"]}


def _head(about: Mapping[str, Any]) -> RtDetrConfig:
    dim = about.get("d_model", 256)
    require(about, encoder_hidden_dim=dim, num_feature_levels=_LEVELS, encode_proj_layers=[2], eval_size=None)
    require(about, encoder_activation_function="gelu", activation_function="silu", decoder_activation_function="relu")
    require(about, normalize_before=False, learn_initial_query=False, with_box_refine=True, layer_norm_eps=1e-5)
    require(about, batch_norm_eps=1e-5, positional_encoding_temperature=10000, anchor_image_size=None)
    heads, hidden = about.get("encoder_attention_heads", 8), about.get("encoder_ffn_dim", 1024)
    require(about, decoder_attention_heads=heads, decoder_ffn_dim=hidden)
    return RtDetrConfig(
        dim=dim,
        num_heads=heads,
        hidden=hidden,
        queries=about.get("num_queries", 300),
        encoder_depth=about.get("encoder_layers", 1),
        decoder_depth=about.get("decoder_layers", 6),
        points=about.get("decoder_n_points", 4),
        expansion=float(about.get("hidden_expansion", 1.0)),
        dropout=about.get("dropout", 0.0),
        denoising=about.get("num_denoising", 100),
    )


def _csp(ours: str, theirs: str) -> list[Rule]:
    rules = [*_layer(f"{ours}.enter", f"{theirs}.conv1"), *_layer(f"{ours}.skip", f"{theirs}.conv2")]
    rules += _layer(f"{ours}.leave", f"{theirs}.conv3")
    for index in range(3):
        rules += _layer(f"{ours}.blocks.{index}.wide", f"{theirs}.bottlenecks.{index}.conv1")
        rules += _layer(f"{ours}.blocks.{index}.narrow", f"{theirs}.bottlenecks.{index}.conv2")
    return rules


def _layer(ours: str, theirs: str) -> list[Rule]:
    return conv_norm(ours, f"{theirs}.conv", f"{theirs}.norm")


def _rules(config: RtDetrConfig) -> list[Rule]:
    rules = [rule("noised_label", "model.denoising_class_embed.weight")]
    for level in range(_LEVELS):
        for ours, theirs in (("project", "encoder_input_proj"), ("enter", "decoder_input_proj")):
            rules.append(rule(f"{ours}.{level}.conv.weight", f"model.{theirs}.{level}.0.weight"))
            rules += batch_norm(f"{ours}.{level}.norm", f"model.{theirs}.{level}.1")
    for index in range(config.encoder_depth):
        ours, theirs = f"encoder.attention.{index}", f"model.encoder.encoder.0.layers.{index}"
        rules += [*attention(f"{ours}.attention", f"{theirs}.self_attn"), *encoder_rest(ours, theirs)]
    for index in range(_LEVELS - 1):
        rules += _layer(f"encoder.laterals.{index}", f"model.encoder.lateral_convs.{index}")
        rules += _layer(f"encoder.strides.{index}", f"model.encoder.downsample_convs.{index}")
        rules += _csp(f"encoder.down.{index}", f"model.encoder.fpn_blocks.{index}")
        rules += _csp(f"encoder.up.{index}", f"model.encoder.pan_blocks.{index}")
    rules += [*linear("proposal.0", "model.enc_output.0"), *linear("proposal.1", "model.enc_output.1")]
    rules += linear("proposal_classifier", "model.enc_score_head")
    for part in range(3):
        rules += linear(f"proposal_box.{2 * part}", f"model.enc_bbox_head.layers.{part}")
    for index in range(2):
        rules += linear(f"place.{2 * index}", f"model.decoder.query_pos_head.layers.{index}")
    for index in range(config.decoder_depth):
        rules += decoder_layer(index)
        rules += linear(f"classifiers.{index}", f"model.decoder.class_embed.{index}")
        for part in range(3):
            rules += linear(f"boxes.{index}.{2 * part}", f"model.decoder.bbox_embed.{index}.layers.{part}")
    return rules


def _completed(tensors: Tensors, config: RtDetrConfig) -> Tensors:
    """Without the last row of the labels of noised boxes, which stands for padding."""
    name = "model.denoising_class_embed.weight"
    return {**tensors, name: tensors[name][:-1]} if name in tensors else tensors


RT_DETR = HeadTranslation(
    kind="rt_detr",
    architecture="RTDetrForObjectDetection",
    task="detect",
    prefix=("model.backbone.model.",),
    backbone=_backbone,
    head=_head,
    rules=_rules,
    completed=_completed,
)
