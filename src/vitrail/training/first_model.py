"""The model that a run gets where none is named: by the size and colour of a few of its images."""

from dataclasses import dataclass

from vitrail.data.dataset import Dataset
from vitrail.errors import BrokenImage
from vitrail.models.backbone import Backbone
from vitrail.models.registry import create, resolve
from vitrail.training.config import TrainConfig, change

_SAMPLED = 16  # images, spread over the set, that decide its size and colour
SMALL = 64  # pixels: images up to here get a model with small patches
FOR_SMALL = "vit32_conv"


@dataclass(frozen=True)
class Sampled:
    """What a few images of a set have in common: the median height and width, and whether all are grey."""

    height: int
    width: int
    grey: bool


def sample(dataset: Dataset) -> Sampled:
    """Looks at a few images that are spread over a data set."""
    shapes = []
    for index in range(0, len(dataset), max(len(dataset) // _SAMPLED, 1)):
        try:
            shapes.append(dataset.read(index).shape)
        except BrokenImage:  # packing counts and names it
            continue
    if not shapes:
        return Sampled(0, 0, grey=False)
    heights, widths = (sorted(shape[side] for shape in shapes) for side in (1, 2))
    return Sampled(heights[len(shapes) // 2], widths[len(shapes) // 2], grey=all(shape[0] == 1 for shape in shapes))


def size_for_small(seen: Sampled) -> tuple[int, int]:
    """The size that small images are resized to: whole patches of 4 x 4 pixels, two or more a side."""
    return max(seen.height // 4, 2) * 4, max(seen.width // 4, 2) * 4


def fresh_model(
    config: TrainConfig, outputs: int, seen: Sampled, notes: list[str], *, named: bool
) -> tuple[TrainConfig, Backbone]:
    """A model without weights for the data, and the config that names it."""
    options = {"num_classes": outputs, **config.options}
    size = config.image_size
    if not named and 0 < max(seen.height, seen.width) <= SMALL:
        config = change(config, {"model": FOR_SMALL})
        size = size or size_for_small(seen)
        notes.append(f"images are about {seen.height} x {seen.width} pixels: {FOR_SMALL}, one token per 4 x 4 pixels")
    elif not named:
        notes.append(f"no model was named: {config.model}, the smallest of the usual ones")
    if size is not None:
        options["image_size"] = size
    if seen.grey and "channels" not in options:
        options["channels"] = 1
        notes.append("all sampled images are grey: the model takes one channel")
    resolve(config.model)
    return config, create(config.model, **options)


def default_model(data: Dataset, *, image_size: int | tuple[int, int] | None = None) -> tuple[str, tuple[int, int]]:
    """The new model that a run on training images would choose, and its image size."""
    config = change(TrainConfig(), {} if image_size is None else {"image_size": image_size})
    config, backbone = fresh_model(config, 1, sample(data), [], named=False)
    return config.model, backbone.config.image_size
