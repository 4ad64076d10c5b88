"""DeiT: a ViT with a distillation token and a second head (Touvron et al. 2021, arXiv:2012.12877)."""

from dataclasses import dataclass

from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.models.backbone import Features
from vitrail.models.distilled import Distilled
from vitrail.models.family import Family, Preset
from vitrail.models.initialise import Scheme, initialise
from vitrail.models.vit import ViT, ViTConfig


@dataclass(frozen=True, kw_only=True)
class DeiTConfig(ViTConfig):
    """A ViT config; all models of this family have a distillation token and its head."""

    init: Scheme = "trunc_normal"


class DeiT(Distilled, ViT):
    """Two tokens, two heads: in training each has its own loss, `classify` returns their mean."""

    distillation = True

    def __init__(self, config: DeiTConfig) -> None:
        if not config.class_token or config.pool.width(config.dim) != config.dim:
            raise ConfigError(
                f"a distilled model needs class_token=True and a pool with the width of one token; class_token is "
                f"{config.class_token}, pool is {config.pool.kind!r}"
            )
        super().__init__(config)
        self.distillation_head = self.new_head()
        initialise(self.distillation_head, config.init, name="distillation_head")

    def heads(self, features: Features) -> tuple[Tensor, Tensor]:
        """Features -> the logits B K of the class token's head and of the distillation token's head."""
        by_teacher = self.get_submodule("distillation_head")(self.pool_norm(features.prefix[:, 1]))
        return self.head(self.pooled(features)), by_teacher


def _size(dim: int, num_heads: int) -> Preset:
    name = {192: "tiny", 384: "small", 768: "base"}[dim]
    return Preset(
        DeiTConfig(dim=dim, depth=12, num_heads=num_heads),
        weights=f"timm deit_{name}_distilled_patch16_*; hf facebook/deit-{name}-distilled-patch16-224",
    )


DEIT = Family(
    name="deit",
    config=DeiTConfig,
    module=DeiT,
    paper="arXiv:2012.12877",
    idea="A ViT trained on ImageNet alone: a second token is trained by distillation from a teacher, usually a CNN.",
    use="With a teacher: more accurate than a ViT of the same size that is trained on labels alone.",
    presets={
        "deit_tiny_distilled_patch16": _size(192, 3),
        "deit_small_distilled_patch16": _size(384, 6),
        "deit_base_distilled_patch16": _size(768, 12),
    },
)
