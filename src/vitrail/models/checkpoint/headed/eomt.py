"""EoMT of Hugging Face, whose backbone is a DINOv2 with registers."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import Unsupported
from vitrail.models.checkpoint.dialect import Rule, linear, rule
from vitrail.models.checkpoint.headed.translation import HeadTranslation, Tensors, require
from vitrail.models.heads import EomtConfig

_OF_VIT = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "mlp_ratio", "hidden_act", "layer_norm_eps",
    "image_size", "patch_size", "num_channels", "num_register_tokens", "use_swiglu_ffn",
)  # fmt: skip
_ATTENTION = {"q_proj": "attention.query", "k_proj": "attention.key", "v_proj": "attention.value"}


def _backbone(about: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config.json of a DINOv2 with registers."""
    kind = {"model_type": "dinov2_with_registers", "architectures": ["Dinov2WithRegistersModel"]}
    return kind | {name: about[name] for name in _OF_VIT if name in about}


def _renamed(tensors: Tensors) -> Tensors:
    """The names of a DINOv2: its class token has a position, which is 0 here, and it can hide patches."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        new = re.sub(r"^layers\.", "encoder.layer.", name).replace("attention.out_proj", "attention.output.dense")
        for theirs, ours in _ATTENTION.items():
            new = new.replace(f"attention.{theirs}", f"attention.{ours}")
        found[new] = tensor
    table = found.pop("embeddings.position_embeddings.weight")
    found["embeddings.position_embeddings"] = torch.cat([torch.zeros_like(table[:1]), table])[None]
    found["embeddings.mask_token"] = torch.zeros_like(table[:1])
    return found


def _head(about: Mapping[str, Any]) -> EomtConfig:
    require(about, hidden_act="gelu")
    return EomtConfig(
        queries=about.get("num_queries", 200),
        blocks=about.get("num_blocks", 4),
        upscale=about.get("num_upscale_blocks", 2),
        masked=0.0,
    )


def _rules(config: EomtConfig) -> list[Rule]:
    rules = [rule("queries", "query.weight"), *linear("classifier", "class_predictor")]
    for index in range(3):
        rules += linear(f"mlp.{2 * index}", f"mask_head.fc{index + 1}")
    for index in range(config.upscale):
        ours, theirs = f"upscale.{index}", f"upscale_block.block.{index}"
        rules += linear(f"{ours}.0", f"{theirs}.conv1")
        rules.append(rule(f"{ours}.2.weight", f"{theirs}.conv2.weight"))
        rules += linear(f"{ours}.3.layer", f"{theirs}.layernorm2d")
    return rules


def _completed(tensors: Tensors, config: EomtConfig) -> Tensors:
    """Refuses a model that was trained too little to do without masked attention."""
    if "attn_mask_probs" in tensors and bool((tensors["attn_mask_probs"] > 0).any()):
        raise Unsupported(
            "the model still masks its attention (attn_mask_probs is not 0); only trained ones do without"
        )
    return tensors


EOMT = HeadTranslation(
    kind="eomt",
    architecture="EomtForUniversalSegmentation",
    task="segment",
    prefix=("embeddings.", "layers.", "layernorm."),
    every_prefix=True,
    backbone=_backbone,
    renamed=_renamed,
    head=_head,
    rules=_rules,
    completed=_completed,
    ignored=r"attn_mask_probs|criterion\.empty_weight",
)
