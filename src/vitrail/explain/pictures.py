"""Pictures to be explained: as a model is given them, and as people see them."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from vitrail.data.cache import fit
from vitrail.data.decode import SUFFIXES, decode
from vitrail.errors import BrokenImage
from vitrail.models.backbone import BackboneConfig

LARGEST = 448  # pixels of the longer side of what people see


class Picture(NamedTuple):
    """A picture to look at."""

    name: str
    pixels: Tensor  # uint8 C H W, what the model is given
    shown: Tensor  # uint8 C kH kW, the same part of the picture, at a scale for people
    mask: Tensor | None = None  # bool H W, where the object is that the answer should hang on


class Read(NamedTuple):
    """What came of files."""

    pictures: list[Picture]
    broken: dict[str, str]  # name -> why it could not be read


def read_pictures(paths: Iterable[Path], config: BackboneConfig, *, masks: Path | None = None) -> Read:
    """Image files, cut and scaled to what a model takes; those that are no images with the reason.

    `masks` is a folder with an image of the same name for each of them, or the one image, and is not 0 where the
    object is.
    """
    found, broken = list[Picture](), dict[str, str]()
    for path in paths:
        name = str(path)
        if path.is_dir():
            broken[name] = f"{name} is a folder without images"
            continue
        try:
            image = decode(path.read_bytes(), name=name)
            one = picture(image, config, name=name)
            if masks is not None:
                one = one._replace(mask=_mask(_mask_file(masks, path), image, config))
            found.append(one)
        except BrokenImage as error:
            broken[name] = str(error)
        except OSError as error:
            broken[name] = f"{name} cannot be read: {error.strerror or error}"
    return Read(found, broken)


def _mask_file(masks: Path, picture: Path) -> Path:
    """The mask of a picture: in a folder, the image of the same name, whatever kind of file it is."""
    if not masks.is_dir():
        return masks
    named = sorted(file for file in masks.iterdir() if file.stem == picture.stem and file.suffix.lower() in SUFFIXES)
    if not named:
        raise BrokenImage(f"{picture} has no mask: there is no {picture.stem}.png in {masks}")
    return named[0]


def _mask(file: Path, image: Tensor, config: BackboneConfig) -> Tensor:
    """Where the object is in the part of an image C H W that a model is given: bool h w."""
    known = decode(file.read_bytes(), name=str(file)).amax(dim=0) > 0  # H W
    if known.shape != image.shape[1:]:
        sizes = [f"{shape[0]} x {shape[1]}" for shape in (known.shape, image.shape[1:])]
        raise BrokenImage(f"the mask {file} has {sizes[0]} pixels, and its picture {sizes[1]}; they must be the same")
    cut = fit(255 * known.byte()[None, None], size=config.image_size, channels=1)[0, 0] > 127
    if not cut.any():
        raise BrokenImage(f"the mask {file} shows no object in the part of the picture that the model is given")
    return cut


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
