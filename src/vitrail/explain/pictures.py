"""Pictures to be explained: as the model takes them, and as people see them."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from vitrail.data.decode import SUFFIXES, decode
from vitrail.data.preprocess import Preprocess
from vitrail.errors import BrokenImage
from vitrail.files import read_bytes

MAX_SIDE = 448  # pixels of the longer side of what people see


class Picture(NamedTuple):
    """A picture to be explained."""

    name: str
    pixels: Tensor  # uint8 C H W, resized and cropped for the model
    shown: Tensor  # uint8 C kH kW, the same part of the picture at a larger scale
    maps: Tensor  # 2 3: from `pixels` to pixels of the file
    size: tuple[int, int]  # height and width of the file
    mask: Tensor | None = None  # bool H W, where the object is


class Read(NamedTuple):
    """Pictures that were read, and files that could not be."""

    pictures: list[Picture]
    broken: dict[str, str]  # name -> reason


def read_pictures(paths: Iterable[Path], preprocess: Preprocess, *, masks: Path | None = None) -> Read:
    """Reads image files, resized and cropped for a model; those that cannot be read with the reason.

    `masks` is a folder with an image of the same name for each of them, or a single image: not black where the object
    is.
    """
    pictures, broken = list[Picture](), dict[str, str]()
    for path in paths:
        name = str(path)
        if path.is_dir():
            broken[name] = f"{name} is a folder without images"
            continue
        try:
            image = decode(read_bytes(path), name=name)
            picture = fitted_picture(image, preprocess, name=name)
            if masks is not None:
                picture = picture._replace(mask=_mask(_mask_file(masks, path), image, preprocess))
            pictures.append(picture)
        except BrokenImage as error:
            broken[name] = str(error)
        except OSError as error:
            broken[name] = f"{name} cannot be read: {error.strerror or error}"
    return Read(pictures, broken)


def _mask_file(masks: Path, picture: Path) -> Path:
    """The mask of a picture: in a folder, the image of the same name with any image suffix."""
    if not masks.is_dir():
        return masks
    files = sorted(file for file in masks.iterdir() if file.stem == picture.stem and file.suffix.lower() in SUFFIXES)
    if not files:
        raise BrokenImage(f"{picture} has no mask; expected {picture.stem}.png in {masks}")
    return files[0]


def _mask(file: Path, image: Tensor, preprocess: Preprocess) -> Tensor:
    """Where the object is in the part of an image C H W that the model takes: bool h w."""
    mask = decode(read_bytes(file), name=str(file)).amax(dim=0) > 0  # H W
    if mask.shape != image.shape[1:]:
        sizes = [f"{shape[0]} x {shape[1]}" for shape in (mask.shape, image.shape[1:])]
        raise BrokenImage(f"the mask {file} has {sizes[0]} pixels but its picture {sizes[1]}; they must be the same")
    grey = replace(preprocess, channels=1, mean=(0.0,), std=(1.0,))  # padding is black: no object
    fitted = grey.fit(255 * mask.byte()[None, None])[0][0, 0] > 127
    if not fitted.any():
        raise BrokenImage(f"the mask {file} shows no object in the part of the picture that the model takes")
    return fitted


def fitted_picture(image: Tensor, preprocess: Preprocess, *, name: str) -> Picture:
    """An image uint8 C H W as a model takes it, and the same part enlarged as far as the image has pixels."""
    height, width = preprocess.image_size
    available = min(image.shape[1] / height, image.shape[2] / width)
    scale = max(1, min(int(available), MAX_SIDE // max(height, width)))
    larger = replace(preprocess, image_size=(scale * height, scale * width))
    (pixels, maps), (shown, _) = (one.fit(image[None]) for one in (preprocess, larger))
    return Picture(name, pixels[0], shown[0], maps[0], (image.shape[1], image.shape[2]))
