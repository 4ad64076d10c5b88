"""What the images of a run, or of the weights that it starts from, are brought to."""

from pathlib import Path

from vitrail.data.augment import AugmentConfig
from vitrail.models.checkpoint.hub import locate
from vitrail.models.checkpoint.pixels import HALF, find
from vitrail.tasks.distill import Normalisation


def normalisation_of(source: str | Path) -> Normalisation | None:
    """The mean and deviation of a run or a checkpoint of ours, of timm or Hugging Face; None where nothing tells."""
    found = find(locate(source))
    return None if found is None else Normalisation(*found)


def of_config(config: AugmentConfig) -> Normalisation:
    """The normalisation that a config asks for."""
    return Normalisation(config.mean or HALF, config.std or HALF)
