"""Hugging Face's checkpoints: vision_transformer.py, eva.py, beit.py and deit.py, where they are plain ViTs."""

from vitrail.errors import Unsupported
from vitrail.models.backbone import Backbone, BackboneConfig
from vitrail.models.checkpoint.dialect import Foreign, Found
from vitrail.models.checkpoint.files import Weights


class HuggingFace:
    """Hugging Face."""

    name = "hf"

    def recognises(self, weights: Weights) -> bool:
        """Whether the tensors' names are Hugging Face's."""
        return False

    def read(self, weights: Weights, hint: BackboneConfig | None) -> Found:
        """The model behind the weights."""
        raise Unsupported("being written")

    def write(self, model: Backbone) -> Foreign:
        """The model in Hugging Face's words."""
        raise Unsupported("being written")
