"""CvT (Wu et al. 2021, arXiv:2103.15808): convolutions embed the tokens and project queries, keys and values."""

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
    """Three stages without positions: the convolutions tell patches where they are."""

    dynamic_size: bool = True
    mlp_ratios: tuple[Positive, ...] = (4.0, 4.0, 4.0)
    norm: NormConfig = LayerNormConfig(eps=1e-5)

    def windows(self) -> list[Window]:
        """What one token of each stage is made from: 7 x 7 pixels, then 3 x 3 tokens of the stage before."""
        return [Window(7, 4, 2)] + [Window(3, 2, 1)] * (len(self.depths) - 1)

    def attention(self, stage: int) -> ConvProjectionConfig:
        """The attention of a stage."""
        return ConvProjectionConfig()

    def grids(self, image_size: tuple[int, int]) -> tuple[Grid, ...]:
        """The grid of each level for an image size, or an error that names the smallest that fits."""
        if min(image_size) < 3:
            height, width = image_size
            raise InputError(f"an image of {height} x {width} pixels is too small; the smallest that fits is 3 x 3")
        return super().grids(image_size)


class CvT(Pyramid):
    """A class token joins the patches in the last stage, and passes around its convolutions."""

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
    idea="Small depth-wise convolutions stand before the linear maps that make queries, keys and values, overlapping "
    "ones between the stages. They bring what a CNN knows of neighbours, so that positions can be left out.",
    use="Few data or changing image sizes, where a plain ViT of this size would need more of both.",
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
