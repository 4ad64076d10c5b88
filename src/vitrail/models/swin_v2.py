"""Swin v2: Swin with norms at the end of branches, cosine attention and computed biases (arXiv:2111.09883)."""

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
    """The attention of Swin v2, in square windows."""
    return WindowConfig(size=(size, size), relative="continuous", cosine=True, bias="qv")


@dataclass(frozen=True, kw_only=True)
class SwinV2Config(SwinConfig):
    """A Swin config with the choices of v2.

    `trained_windows`, one per stage, are the window sizes in which the biases were trained, if the model now has
    others: after a change of the window or image size, the function that computes the biases stays the same.
    """

    image_size: tuple[Count, Count] = (256, 256)
    attention: AttentionConfig = windows(8)
    norm_placement: NormPlacement = "res_post"
    trained_windows: tuple[tuple[Count, Count], ...] = ()

    def __post_init__(self) -> None:
        """Raises ConfigError if there is not one trained window per stage."""
        super().__post_init__()
        count, stages = len(self.trained_windows), len(self.depths)
        if count not in (0, stages):
            raise ConfigError(f"trained_windows has {count} entries, but depths has {stages}")

    @property
    def learned(self) -> tuple[Grid, ...]:
        """The trained window of each stage; none if biases are not computed."""
        attention = self.attention
        if not isinstance(attention, WindowConfig) or attention.relative != "continuous":
            return ()
        now = tuple(attention.trained or fitting(attention.size, grid) for grid in self.grids(self.image_size))
        return self.trained_windows or now

    def attention_at(self, level: int) -> AttentionConfig:
        """The attention of one stage, with the biases of the trained window on any grid."""
        attention = self.attention
        if not self.learned or not isinstance(attention, WindowConfig):
            return attention
        return replace(attention, trained=self.learned[level])


class SwinV2(Swin):
    """A Swin with computed biases, so that other windows and image sizes need no resampling."""

    config: SwinV2Config

    def resize(self, image_size: int | tuple[int, int]) -> Self:
        """Changes the image size in place; the biases stay those of the trained windows."""
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
    """A model that was trained with windows of 12 at 192 pixels (6 in the last stage) and then enlarged."""
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
    idea="Swin for larger models: norms at the end of the branches and cosine attention make training stable. The bias "
    "is computed from the logarithm of the offset, so that the window size can change.",
    use="Instead of Swin if images are larger than in training, or the model is very deep.",
    presets={
        "swinv2_tiny_window8": _tiny(8),
        "swinv2_tiny_window16": _tiny(16),
        "swinv2_base_window12to16_192to256": _moved(16, 256),
        "swinv2_base_window12to24_192to384": _moved(24, 384),
    },
)
