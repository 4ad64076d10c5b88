"""DPT of Hugging Face: depth at the resolution of its output."""

from collections.abc import Mapping

from torch import Tensor, nn

from parity.heads import HeadCase, from_hf
from vitrail.models.checkpoint.headed import Headed

SMALL = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 64,
    "patch_size": 16, "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8, 16, 24, 32],
    "fusion_hidden_size": 16,
}  # fmt: skip
NAME = "DPTForDepthEstimation"


def theirs(model: nn.Module, images: Tensor) -> Mapping[str, Tensor]:
    return {"depth": model(images).predicted_depth}


def ours(found: Headed, images: Tensor) -> Mapping[str, Tensor]:
    head = found.head
    return {"depth": head.positive(head(head.read(found.backbone, images)))}


def case(what: str, **changes: object) -> HeadCase:
    return HeadCase(f"{NAME}, {what}", from_hf(NAME, what, **{**SMALL, **changes}), theirs, ours, (64, 64))


CASES = [
    case("small"),
    case("other layers", num_hidden_layers=6, backbone_out_indices=[1, 2, 4, 5], neck_hidden_sizes=[8, 8, 8, 8]),
    case("class token ignored", readout_type="ignore", fusion_hidden_size=24),
]
