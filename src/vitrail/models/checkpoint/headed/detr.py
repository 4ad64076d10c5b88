"""DETR and Deformable DETR of Hugging Face."""

from collections.abc import Mapping
from typing import Any

from vitrail.models.checkpoint.dialect import Rule, linear, rule
from vitrail.models.checkpoint.headed.translation import HeadTranslation, Tensors, convolutional, require
from vitrail.models.heads import DeformableDetrConfig, DetrConfig

_BACKBONES = ("model.backbone.conv_encoder.model.", "model.backbone.model.")


def attention(ours: str, theirs: str) -> list[Rule]:
    """The four maps of an attention layer with separate queries, keys and values."""
    return [
        each
        for mine, name in (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("projection", "out_proj"))
        for each in linear(f"{ours}.{mine}", f"{theirs}.{name}")
    ]


def deformable(ours: str, theirs: str) -> list[Rule]:
    """The four maps of multi-scale deformable attention."""
    names = {"offsets": "sampling_offsets", "attention": "attention_weights"}
    names |= {"value": "value_proj", "projection": "output_proj"}
    return [each for mine, name in names.items() for each in linear(f"{ours}.{mine}", f"{theirs}.{name}")]


def encoder_rest(ours: str, theirs: str) -> list[Rule]:
    """The norm after self-attention, the MLP and the norm after it."""
    return [
        *linear(f"{ours}.after_attention.norm", f"{theirs}.self_attn_layer_norm"),
        *linear(f"{ours}.mlp.fc1", f"{theirs}.fc1"),
        *linear(f"{ours}.mlp.fc2", f"{theirs}.fc2"),
        *linear(f"{ours}.after_mlp.norm", f"{theirs}.final_layer_norm"),
    ]


def decoder_layer(index: int) -> list[Rule]:
    """A decoder layer with deformable attention."""
    ours, theirs = f"decoder.{index}", f"model.decoder.layers.{index}"
    return [
        *attention(f"{ours}.attention", f"{theirs}.self_attn"),
        *encoder_rest(ours, theirs),
        *deformable(f"{ours}.cross", f"{theirs}.encoder_attn"),
        *linear(f"{ours}.after_cross.norm", f"{theirs}.encoder_attn_layer_norm"),
    ]


def _detr(config: DetrConfig) -> list[Rule]:
    rules = [
        *linear("project", "model.input_projection"),
        *linear("norm", "model.decoder.layernorm"),
        *linear("classifier", "class_labels_classifier"),
        rule("queries", "model.query_position_embeddings.weight"),
    ]
    for part in range(3):
        rules += linear(f"box.{2 * part}", f"bbox_predictor.layers.{part}")
    for index in range(config.encoder_depth):
        ours, theirs = f"encoder.{index}", f"model.encoder.layers.{index}"
        rules += [*attention(f"{ours}.attention", f"{theirs}.self_attn"), *encoder_rest(ours, theirs)]
    for index in range(config.decoder_depth):
        ours, theirs = f"decoder.{index}", f"model.decoder.layers.{index}"
        rules += [*attention(f"{ours}.attention", f"{theirs}.self_attn"), *encoder_rest(ours, theirs)]
        rules += attention(f"{ours}.cross", f"{theirs}.encoder_attn")
        rules += linear(f"{ours}.after_cross.norm", f"{theirs}.encoder_attn_layer_norm")
    return rules


def _sizes(about: Mapping[str, Any]) -> dict[str, Any]:
    """What both models say alike."""
    require(about, activation_function="relu", position_embedding_type="sine")
    require(about, decoder_attention_heads=about.get("encoder_attention_heads", 8))
    hidden = about.get("encoder_ffn_dim")
    require(about, decoder_ffn_dim=hidden)
    given = {
        "dim": about.get("d_model"),
        "num_heads": about.get("encoder_attention_heads"),
        "hidden": hidden,
        "encoder_depth": about.get("encoder_layers"),
        "decoder_depth": about.get("decoder_layers"),
        "queries": about.get("num_queries"),
        "dropout": about.get("dropout"),
    }
    return {name: value for name, value in given.items() if value is not None}


def _detr_config(about: Mapping[str, Any]) -> DetrConfig:
    return DetrConfig(**_sizes(about))


def _deformable_detr(config: DeformableDetrConfig) -> list[Rule]:
    rules = [rule("level_position", "model.level_embed")]
    for level in range(config.levels):
        rules += linear(f"levels.maps.{level}.0", f"model.input_proj.{level}.0")
        rules += linear(f"levels.maps.{level}.1", f"model.input_proj.{level}.1")
    if config.two_stage:
        rules += [*linear("proposal.0", "model.enc_output"), *linear("proposal.1", "model.enc_output_norm")]
        rules += [*linear("place.0", "model.pos_trans"), *linear("place.1", "model.pos_trans_norm")]
    else:
        rules += [rule("queries", "model.query_position_embeddings.weight")]
        rules += linear("reference", "model.reference_points")
    for index in range(config.encoder_depth):
        ours, theirs = f"encoder.{index}", f"model.encoder.layers.{index}"
        rules += [*deformable(f"{ours}.attention", f"{theirs}.self_attn"), *encoder_rest(ours, theirs)]
    for index in range(config.decoder_depth):
        rules += decoder_layer(index)
    for index in range(_heads(config)):
        rules += linear(f"classifiers.{index}", f"class_embed.{index}")
        for part in range(3):
            rules += linear(f"boxes.{index}.{2 * part}", f"bbox_embed.{index}.layers.{part}")
    return rules


def _heads(config: DeformableDetrConfig) -> int:
    return config.decoder_depth + config.two_stage if config.refine else 1


def _completed(tensors: Tensors, config: DeformableDetrConfig) -> Tensors:
    """The heads of each layer by one name: files keep shared ones once, under either of two names."""
    found = {name.removeprefix("model.decoder."): tensor for name, tensor in tensors.items() if _is_head(name)}
    rest = {name: tensor for name, tensor in tensors.items() if not _is_head(name)}
    for name in [name for name in found if name.split(".")[1] == "0"]:
        head, _, part = name.split(".", 2)
        for index in range(1, _heads(config)):
            found.setdefault(f"{head}.{index}.{part}", found[name])
    count = _heads(config)
    return rest | {name: tensor for name, tensor in found.items() if int(name.split(".")[1]) < count}


def _is_head(name: str) -> bool:
    return name.removeprefix("model.decoder.").startswith(("class_embed.", "bbox_embed."))


def _deformable_config(about: Mapping[str, Any]) -> DeformableDetrConfig:
    levels, two_stage = about.get("num_feature_levels", 4), about.get("two_stage", False)
    inner = about.get("backbone_config") or {}
    read = len(inner.get("out_features") or inner.get("out_indices") or ()) or (3 if levels > 1 else 1)
    sizes = _sizes(about)
    if two_stage:
        sizes["queries"] = about.get("two_stage_num_proposals", 300)
    return DeformableDetrConfig(
        **sizes,
        levels=levels,
        read=read,
        points=about.get("encoder_n_points", 4),
        decoder_points=about.get("decoder_n_points", 4),
        refine=about.get("with_box_refine", False),
        two_stage=two_stage,
        denoising=0,
    )


DETR = HeadTranslation(
    kind="detr",
    architecture="DetrForObjectDetection",
    task="detect",
    prefix=_BACKBONES,
    backbone=convolutional,
    head=_detr_config,
    rules=_detr,
)
DEFORMABLE_DETR = HeadTranslation(
    kind="deformable_detr",
    architecture="DeformableDetrForObjectDetection",
    task="detect",
    prefix=_BACKBONES,
    backbone=convolutional,
    head=_deformable_config,
    rules=_deformable_detr,
    completed=_completed,
)
