"""The named sizes of hybrids: a ResNet, then a plain ViT (arXiv:2010.11929; "R26" and the like: arXiv:2106.10270)."""

from vitrail.layers.resnet_stem import ResNetPatchConfig
from vitrail.models.family import Preset
from vitrail.models.vit import ViTConfig

_SIZES = {  # dim, depth, heads; blocks of the stages of the ResNet; patch size in pixels of its feature map
    "vit_tiny_r_s16_p8": ((192, 12, 3), (), 8),
    "vit_small_r26_s32": ((384, 12, 6), (2, 2, 2, 2), 1),
    "vit_base_r26_s32": ((768, 12, 12), (2, 2, 2, 2), 1),
    "vit_base_r50_s16": ((768, 12, 12), (3, 4, 9), 1),
    "vit_large_r50_s32": ((1024, 24, 16), (3, 4, 6, 3), 1),
}


def hybrids() -> dict[str, Preset]:
    """A preset for each name."""
    return {
        name: Preset(
            ViTConfig(
                dim=dim,
                depth=depth,
                num_heads=num_heads,
                patch=ResNetPatchConfig(size=(size, size), depths=depths),
            ),
            f"timm {name}_*",
        )
        for name, ((dim, depth, num_heads), depths, size) in _SIZES.items()
    }
