"""One image, read, decoded and fitted into its room in memory."""

from torch import Tensor

from vitrail.data.dataset import Dataset
from vitrail.data.preprocess import Preprocess
from vitrail.errors import BrokenImage

Answer = tuple[int, int] | str  # the height and width that an image had, or why it cannot be read


def decode_into(dataset: Dataset, index: int, fit: Preprocess, room: Tensor) -> Answer:
    """Writes an image of a data set to C H W uint8 at the stored size."""
    try:
        image = dataset.read(index)[None]
        room.copy_(fit.fit(image)[0][0])
    except (BrokenImage, OSError) as error:
        return str(error)
    return image.shape[2], image.shape[3]
