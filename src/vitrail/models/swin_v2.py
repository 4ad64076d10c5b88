"""Swin v2: Swin with norms at the ends of branches, cosine attention and computed biases (arXiv:2111.09883)."""

from dataclasses import dataclass

from vitrail.config import Count
from vitrail.layers.attention import AttentionConfig, WindowConfig
from vitrail.layers.block import NormPlacement
from vitrail.models.family import Family, Preset
from vitrail.models.swin import Swin, SwinConfig


def windows(size: int) -> WindowConfig:
    """Attention in square windows as the second version does it."""
    return WindowConfig(size=(size, size), relative="continuous", cosine=True, bias="qv", padding="after_shift")


@dataclass(frozen=True, kw_only=True)
class SwinV2Config(SwinConfig):
    """A Swin config with the choices of the second version."""

    image_size: tuple[Count, Count] = (256, 256)
    attention: AttentionConfig = windows(8)
    norm_placement: NormPlacement = "res_post"


class SwinV2(Swin):
    """A Swin whose biases are computed, so that it moves to other windows and images without resampling."""


def _tiny(window: int) -> Preset:
    return Preset(
        SwinV2Config(
            dims=(96, 192, 384, 768), depths=(2, 2, 6, 2), num_heads=(3, 6, 12, 24), attention=windows(window)
        ),
        weights=f"timm swinv2_tiny_window{window}_256.*; hf microsoft/swinv2-tiny-patch4-window{window}-256",
    )


SWIN_V2 = Family(
    name="swin_v2",
    config=SwinV2Config,
    module=SwinV2,
    paper="arXiv:2111.09883",
    idea="Swin made to grow: norms stand at the ends of the branches and attention compares directions alone, so that "
    "large models stay calm. The bias is computed from the logarithm of the offset, so that windows may change.",
    use="Where a Swin would be used and images will be larger than those of training, or the model very deep.",
    presets={"swinv2_tiny_window8": _tiny(8), "swinv2_tiny_window16": _tiny(16)},
)
