"""Pictures to be explained: as a model is given them, and as people see them."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from vitrail.data.cache import fit
from vitrail.data.decode import decode
from vitrail.errors import BrokenImage
from vitrail.models.backbone import BackboneConfig

LARGEST = 448  # pixels of the longer side of what people see


class Picture(NamedTuple):
    """A picture to look at."""

    name: str
    pixels: Tensor  # uint8 C H W, what the model is given
    shown: Tensor  # uint8 C kH kW, the same part of the picture, at a scale for people


class Read(NamedTuple):
    """What came of files."""

    pictures: list[Picture]
    broken: dict[str, str]  # name -> why it could not be read


def read_pictures(paths: Iterable[Path], config: BackboneConfig) -> Read:
    """Image files, cut and scaled to what a model takes; those that are no images with the reason."""
    found, broken = list[Picture](), dict[str, str]()
    for path in paths:
        name = str(path)
        if path.is_dir():
            broken[name] = f"{name} is a folder without images"
            continue
        try:
            found.append(picture(decode(path.read_bytes(), name=name), config, name=name))
        except BrokenImage as error:
            broken[name] = str(error)
        except OSError as error:
            broken[name] = f"{name} cannot be read: {error.strerror or error}"
    return Read(found, broken)


def picture(image: Tensor, config: BackboneConfig, *, name: str) -> Picture:
    """An image uint8 C H W as a model of a config takes it, and enlarged as far as it has pixels to show."""
    (height, width), most = (
        config.image_size,
        min(image.shape[1] / config.image_size[0], image.shape[2] / config.image_size[1]),
    )
    scale = max(1, min(int(most), LARGEST // max(height, width)))
    pixels, shown = (
        fit(image[None], size=(factor * height, factor * width), channels=config.channels)[0] for factor in (1, scale)
    )
    return Picture(name, pixels, shown)
