"""One image, read and decoded once, and fitted into its rooms in memory: one for each size that is wanted of it."""

from collections.abc import Sequence

from torch import Tensor

from vitrail.data.dataset import Dataset
from vitrail.data.preprocess import Preprocess
from vitrail.errors import BrokenImage

Answer = tuple[int, int] | str  # the height and width that an image had, or why it cannot be read
Room = tuple[Preprocess, Tensor]  # how an image is fitted, and C H W uint8 at that size, to be filled


def decode_into(dataset: Dataset, index: int, rooms: Sequence[Room]) -> Answer:
    """Writes an image of a data set to all its rooms."""
    try:
        image = dataset.read(index)[None]
        for fit, room in rooms:
            room.copy_(fit.fit(image)[0][0])
    except (BrokenImage, OSError) as error:
        return str(error)
    return image.shape[2], image.shape[3]
