"""CvT (Wu et al. 2021, arXiv:2103.15808): convolutions for token embedding and for queries, keys and values."""

from dataclasses import dataclass

from vitrail.config import Positive
from vitrail.errors import InputError
from vitrail.layers.attention import ConvProjectionConfig
from vitrail.layers.embed import Window
from vitrail.layers.norm import LayerNormConfig, NormConfig
from vitrail.layers.patch import Grid
from vitrail.layers.pool import ClassPool
from vitrail.models.family import Family, Preset
from vitrail.models.initialise import initialise
from vitrail.models.pyramid import Pyramid, PyramidConfig


@dataclass(frozen=True, kw_only=True)
class CvTConfig(PyramidConfig):
    """Three stages without positions: the convolutions encode them."""

    dynamic_size: bool = True
    mlp_ratios: tuple[Positive, ...] = (4.0, 4.0, 4.0)
    norm: NormConfig = LayerNormConfig(eps=1e-5)

    def windows(self) -> list[Window]:
        """The embedding of each stage: 7 x 7 pixels, then 3 x 3 tokens of the previous stage."""
        return [Window(7, 4, 2)] + [Window(3, 2, 1)] * (len(self.depths) - 1)

    def attention(self, stage: int) -> ConvProjectionConfig:
        """The attention of a stage."""
        return ConvProjectionConfig()

    def grids(self, image_size: tuple[int, int]) -> tuple[Grid, ...]:
        """The grid of each level for an image size; raises InputError if the image is too small."""
        if min(image_size) < 3:
            height, width = image_size
            raise InputError(f"image size {height} x {width} is too small: must be at least 3 x 3")
        return super().grids(image_size)


class CvT(Pyramid):
    """The class token is added in the last stage; it skips the convolutions."""

    config: CvTConfig
    class_token = True

    def __init__(self, config: CvTConfig) -> None:
        super().__init__(config)
        self.pool = ClassPool()
        initialise(self, "trunc_normal")


CVT = Family(
    name="cvt",
    config=CvTConfig,
    module=CvT,
    paper="arXiv:2103.15808",
    idea="Small depth-wise convolutions before the linear maps to queries, keys and values, and overlapping "
    "convolutions between the stages. They have the locality of a CNN, so that positions are not needed.",
    use="Small datasets or varying image sizes, where a plain ViT of this size would need more data.",
    presets={
        "cvt_13": Preset(
            CvTConfig(dims=(64, 192, 384), depths=(1, 2, 10), num_heads=(1, 3, 6)),
            "hf microsoft/cvt-13, microsoft/cvt-13-384, microsoft/cvt-13-384-22k",
        ),
        "cvt_21": Preset(
            CvTConfig(dims=(64, 192, 384), depths=(1, 4, 16), num_heads=(1, 3, 6)),
            "hf microsoft/cvt-21, microsoft/cvt-21-384, microsoft/cvt-21-384-22k",
        ),
        "cvt_w24": Preset(
            CvTConfig(dims=(192, 768, 1024), depths=(2, 2, 20), num_heads=(3, 12, 16), image_size=(384, 384)),
            "hf microsoft/cvt-w24-384-22k",
        ),
    },
)
