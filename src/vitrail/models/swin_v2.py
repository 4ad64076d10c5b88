"""Swin v2: Swin with norms at the ends of branches, cosine attention and computed biases (arXiv:2111.09883)."""

from dataclasses import dataclass, replace
from typing import Self

from vitrail.config import Count
from vitrail.errors import ConfigError
from vitrail.layers.attention import AttentionConfig, WindowConfig
from vitrail.layers.attention.window import fitting
from vitrail.layers.block import NormPlacement
from vitrail.layers.patch import Grid
from vitrail.models.family import Family, Preset
from vitrail.models.swin import Swin, SwinConfig


def windows(size: int) -> WindowConfig:
    """Attention in square windows as the second version does it."""
    return WindowConfig(size=(size, size), relative="continuous", cosine=True, bias="qv")


@dataclass(frozen=True, kw_only=True)
class SwinV2Config(SwinConfig):
    """A Swin config with the choices of the second version.

    `trained_windows`, one a stage, are those that the biases were learned in, where the model has others now: a model
    that moved to larger windows or images keeps the function that gives its biases.
    """

    image_size: tuple[Count, Count] = (256, 256)
    attention: AttentionConfig = windows(8)
    norm_placement: NormPlacement = "res_post"
    trained_windows: tuple[tuple[Count, Count], ...] = ()

    def __post_init__(self) -> None:
        """Refuses trained windows that are not one a stage."""
        super().__post_init__()
        count, stages = len(self.trained_windows), len(self.depths)
        if count not in (0, stages):
            raise ConfigError(f"trained_windows has {count} windows, depths {stages} numbers; each is one a stage")

    @property
    def learned(self) -> tuple[Grid, ...]:
        """The window of each stage in which its biases were learned; none where biases are not computed."""
        attention = self.attention
        if not isinstance(attention, WindowConfig) or attention.relative != "continuous":
            return ()
        now = tuple(attention.trained or fitting(attention.size, grid) for grid in self.grids(self.image_size))
        return self.trained_windows or now

    def attention_at(self, level: int) -> AttentionConfig:
        """The attention of one stage, whose biases stay those of the trained window on any grid."""
        attention = self.attention
        if not self.learned or not isinstance(attention, WindowConfig):
            return attention
        return replace(attention, trained=self.learned[level])


class SwinV2(Swin):
    """A Swin whose biases are computed, so that it moves to other windows and images without resampling."""

    config: SwinV2Config

    def resize(self, image_size: int | tuple[int, int]) -> Self:
        """Moves the model, in place, to another image size; its biases stay those of the windows it has learned in."""
        learned = self.config.learned
        super().resize(image_size)
        if self.config.learned != learned:
            self.config = replace(self.config, trained_windows=learned)
        return self


def _tiny(window: int) -> Preset:
    return Preset(
        SwinV2Config(
            dims=(96, 192, 384, 768), depths=(2, 2, 6, 2), num_heads=(3, 6, 12, 24), attention=windows(window)
        ),
        weights=f"timm swinv2_tiny_window{window}_256.*; hf microsoft/swinv2-tiny-patch4-window{window}-256",
    )


def _moved(window: int, pixels: int) -> Preset:
    """A model that was trained with windows of 12 at 192 pixels, where the last stage is one of 6, and then moved."""
    return Preset(
        SwinV2Config(
            image_size=(pixels, pixels),
            dims=(128, 256, 512, 1024),
            depths=(2, 2, 18, 2),
            num_heads=(4, 8, 16, 32),
            attention=windows(window),
            trained_windows=((12, 12), (12, 12), (12, 12), (6, 6)),
        ),
        weights=f"timm swinv2_base_window12to{window}_192to{pixels}.*; "
        f"hf microsoft/swinv2-base-patch4-window12to{window}-192to{pixels}-22kto1k-ft",
    )


SWIN_V2 = Family(
    name="swin_v2",
    config=SwinV2Config,
    module=SwinV2,
    paper="arXiv:2111.09883",
    idea="Swin made to grow: norms stand at the ends of the branches and attention compares directions alone, so that "
    "large models stay calm. The bias is computed from the logarithm of the offset, so that windows may change.",
    use="Where a Swin would be used and images will be larger than those of training, or the model very deep.",
    presets={
        "swinv2_tiny_window8": _tiny(8),
        "swinv2_tiny_window16": _tiny(16),
        "swinv2_base_window12to16_192to256": _moved(16, 256),
        "swinv2_base_window12to24_192to384": _moved(24, 384),
    },
)
