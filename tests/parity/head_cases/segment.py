"""SegFormer and EoMT of Hugging Face: class logits of pixels, or of queries with their masks."""

from collections.abc import Mapping

from torch import Tensor, nn

from parity.heads import HeadCase, from_hf
from vitrail.models.checkpoint.headed import Headed

SMALL = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32], "num_attention_heads": [1, 2, 2, 4]}
NAME = "SegformerForSemanticSegmentation"


def theirs(model: nn.Module, images: Tensor) -> Mapping[str, Tensor]:
    return {"logits": model(images).logits}


def ours(found: Headed, images: Tensor) -> Mapping[str, Tensor]:
    return {"logits": found.head(found.backbone.features(images))}


def case(what: str, size: tuple[int, int] = (64, 96), **changes: object) -> HeadCase:
    options = {**SMALL, "decoder_hidden_size": 16, "num_labels": 5, **changes}
    return HeadCase(f"{NAME}, {what}", from_hf(NAME, what, **options), theirs, ours, size)


EOMT = "EomtForUniversalSegmentation"
PLAIN = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "mlp_ratio": 2, "image_size": 64}
PLAIN |= {"patch_size": 16, "num_blocks": 2, "num_queries": 5, "num_upscale_blocks": 1, "num_labels": 4}


def their_queries(model: nn.Module, images: Tensor) -> Mapping[str, Tensor]:
    found = model(images)
    return {"classes": found.class_queries_logits, "masks": found.masks_queries_logits}


def our_queries(found: Headed, images: Tensor) -> Mapping[str, Tensor]:
    classes, masks = found.head.predict(found.head.read(found.backbone, images))
    return {"classes": classes, "masks": masks}


def eomt(what: str, **changes: object) -> HeadCase:
    make = from_hf(EOMT, what, **{**PLAIN, **changes})

    def trained() -> nn.Module:
        model = make()
        model.attn_mask_probs.zero_()  # as at the end of training
        return model

    return HeadCase(f"{EOMT}, {what}", trained, their_queries, our_queries, (64, 64))


CASES = [
    eomt("two blocks with queries"),
    eomt("registers, gated MLPs", num_register_tokens=3, use_swiglu_ffn=True, num_upscale_blocks=2),
    case("b0 in small"),
    case("odd sizes", (70, 90), sr_ratios=[4, 4, 2, 1]),
    case("deeper, wider MLPs", depths=[1, 2, 1, 2], mlp_ratios=[2, 4, 4, 3], decoder_hidden_size=24),
]
