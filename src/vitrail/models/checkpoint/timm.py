"""timm's checkpoints: vision_transformer.py, eva.py, beit.py and deit.py, where they are plain ViTs."""

from vitrail.errors import Unsupported
from vitrail.models.backbone import Backbone, BackboneConfig
from vitrail.models.checkpoint.dialect import Foreign, Found
from vitrail.models.checkpoint.files import Weights


class Timm:
    """timm."""

    name = "timm"

    def recognises(self, weights: Weights) -> bool:
        """Whether the tensors' names are timm's."""
        return "patch_embed.proj.weight" in weights.tensors

    def read(self, weights: Weights, hint: BackboneConfig | None) -> Found:
        """The model behind the weights."""
        raise Unsupported("being written")

    def write(self, model: Backbone) -> Foreign:
        """The model in timm's words."""
        raise Unsupported("being written")
