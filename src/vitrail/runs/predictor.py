"""What predictions, evaluation and tiles need of a model."""

from typing import Protocol

from torch import Tensor

from vitrail.data.preprocess import Preprocess
from vitrail.runs.pictures import Pictures
from vitrail.tasks.task import Task


class Predictor(Protocol):
    """A trained model, or an exported one: a task that reads its outputs, and what makes its input."""

    @property
    def task(self) -> Task:
        """What outputs mean."""
        ...

    @property
    def preprocess(self) -> Preprocess:
        """What makes the input of images."""
        ...

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        """Outputs of fitted images, uint8 B C *image_size."""
        ...


def whole_pictures(model: Predictor) -> Pictures | None:
    """What gives the model whole pictures at sizes of their own; None where all images have one size."""
    found: Pictures | None = getattr(model, "pictures", None)
    return found
