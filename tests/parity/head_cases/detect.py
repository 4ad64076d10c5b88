"""DETR, Deformable DETR and RT-DETR of Hugging Face: class logits and boxes."""

from collections.abc import Mapping
from typing import Any

from support.peers import transformers
from torch import Tensor, nn

from parity.heads import HeadCase, from_hf, resnet
from vitrail.models.checkpoint.headed import Headed

SMALL = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_queries": 7, "num_labels": 3, "backbone": None,
    "use_timm_backbone": False, "two_stage_num_proposals": 6,
}  # fmt: skip
LEVELS = ("stage2", "stage3", "stage4")
DETR, DEFORMABLE = "DetrForObjectDetection", "DeformableDetrForObjectDetection"


def theirs(model: nn.Module, images: Tensor) -> Mapping[str, Tensor]:
    found = model(images)
    return {"logits": found.logits, "boxes": found.pred_boxes}


def ours(found: Headed, images: Tensor) -> Mapping[str, Tensor]:
    boxes = found.head(found.backbone.features(images)).found
    return {"logits": boxes.logits[-1], "boxes": boxes.boxes[-1]}


def case(architecture: str, what: str, **changes: Any) -> HeadCase:
    options = {key: value for key, value in {**SMALL, **changes}.items() if value is not None or key == "backbone"}
    if architecture == DETR:
        options.pop("two_stage_num_proposals")
    return HeadCase(f"{architecture}, {what}", from_hf(architecture, what, **options), theirs, ours, (64, 96))


RT = "RTDetrForObjectDetection"
WIDTHS = {
    "d_model": 32,
    "encoder_hidden_dim": 32,
    "decoder_in_channels": [32, 32, 32],
    "num_queries": 7,
    "num_labels": 3,
}
WIDTHS |= {"encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
WIDTHS |= {"num_labels": 3, "decoder_layers": 2, "encoder_in_channels": [24, 32, 40]}


def rt(what: str, layer: str = "basic", **changes: Any) -> HeadCase:
    sizes = {"embedding_size": 16, "hidden_sizes": [16, 24, 32, 40], "depths": [1, 2, 1, 1], "layer_type": layer}
    backbone = transformers.RTDetrResNetConfig(**sizes, out_features=list(LEVELS))
    options = {
        **WIDTHS,
        "decoder_layers": 2,
        "encoder_in_channels": [24, 32, 40],
        "backbone_config": backbone,
        **changes,
    }
    return HeadCase(f"{RT}, {what}", from_hf(RT, what, **options), theirs, ours, (64, 96))


CASES = [
    case(DETR, "ResNet", backbone_config=resnet("stage4")),
    case(DETR, "bottlenecks", backbone_config=resnet("stage4", layer_type="bottleneck"), encoder_layers=1),
    case(DETR, "timm's ResNet", backbone="resnet18", use_timm_backbone=True),
    case(DEFORMABLE, "three levels", backbone_config=resnet(*LEVELS)),
    case(DEFORMABLE, "refined", backbone_config=resnet(*LEVELS), with_box_refine=True),
    case(DEFORMABLE, "two stages", backbone_config=resnet(*LEVELS), with_box_refine=True, two_stage=True),
    case(DEFORMABLE, "one level", backbone_config=resnet("stage4"), num_feature_levels=1, encoder_n_points=2),
    case(DEFORMABLE, "two levels, two made", backbone_config=resnet(*LEVELS[1:]), decoder_n_points=3),
    rt("basic blocks"),
    rt("bottlenecks, narrow encoder", "bottleneck", hidden_expansion=0.5, decoder_n_points=3),
    rt("deeper, no denoising", encoder_layers=2, decoder_layers=3, num_denoising=0),
]
