"""DPT of Hugging Face for depth, with its own plain ViT."""

import operator
from collections.abc import Mapping
from typing import Any

from vitrail.models.checkpoint.dialect import Rule, linear, rule
from vitrail.models.checkpoint.headed.translation import HeadTranslation, require
from vitrail.models.heads import DptConfig

_OF_VIT = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act", "layer_norm_eps",
    "image_size", "patch_size", "num_channels", "qkv_bias",
)  # fmt: skip


def _backbone(about: Mapping[str, Any]) -> Mapping[str, Any]:
    """A ViT without a head."""
    require(about, is_hybrid=False, backbone_config=None)
    return {"model_type": "vit", "architectures": ["ViTModel"]} | {
        name: about[name] for name in _OF_VIT if name in about
    }


def _head(about: Mapping[str, Any]) -> DptConfig:
    require(about, add_projection=False, use_batch_norm_in_fusion_residual=False, head_in_index=-1)
    require(about, neck_ignore_stages=[], reassemble_factors=[4, 2, 1, 0.5], hidden_act="gelu")
    readout = about.get("readout_type", "project")
    require({"readout_type": "ignore" if readout == "project" else readout}, readout_type="ignore")
    return DptConfig(
        dim=about.get("fusion_hidden_size", 256),
        widths=tuple(about.get("neck_hidden_sizes", (96, 192, 384, 768))),
        layers=tuple(map(operator.index, about.get("backbone_out_indices", (2, 5, 8, 11)))),
        readout=readout,
        output="relu",
    )


def _rules(config: DptConfig) -> list[Rule]:
    rules, stage = list[Rule](), "neck.reassemble_stage"
    for level in range(len(config.widths)):
        rules += linear(f"levels.{level}.project", f"{stage}.layers.{level}.projection")
        rules += linear(f"levels.{level}.resize", f"{stage}.layers.{level}.resize")
        rules += linear(f"levels.{level}.readout", f"{stage}.readout_projects.{level}.0")
        rules.append(rule(f"joins.{level}.weight", f"neck.convs.{level}.weight"))
        theirs = f"neck.fusion_stage.layers.{level}"
        rules += linear(f"fusions.{level}.project", f"{theirs}.projection")
        for ours, unit in (("enter", "residual_layer1"), ("leave", "residual_layer2")):
            for conv in (1, 2):
                rules += linear(f"fusions.{level}.{ours}.conv{conv}", f"{theirs}.{unit}.convolution{conv}")
    for index, name in enumerate((0, 2, 4)):
        rules += linear(f"head.{index}", f"head.head.{name}")
    return rules


DPT = HeadTranslation(
    kind="dpt",
    architecture="DPTForDepthEstimation",
    task="depth",
    prefix=("dpt.",),
    backbone=_backbone,
    head=_head,
    rules=_rules,
    bilinear=True,
    ignored=r"neck\.fusion_stage\.layers\.0\.residual_layer1\..*",  # the coarsest level has nothing to be added to
)
