"""The size at which a run stores images, and the bytes that this takes."""

from dataclasses import replace
from math import prod

from vitrail.data.dataset import Dataset, RandomSubset, Retargeted, Splits
from vitrail.data.decode import inspect
from vitrail.data.preprocess import Preprocess, Size
from vitrail.data.targets.target import Target
from vitrail.errors import BrokenImage

_ROOM = 8 / 7  # how much larger images are stored that are cropped at random
_LEAST = 1 / 2  # of the model's size: images of one size that are smaller are not stored as they are
_LOOKED_AT = 24  # image files whose headers are read


def stored_as(dataset: Dataset, preprocess: Preprocess, *, cropped: bool) -> Preprocess:
    """How images of a data set are fitted into their stored size.

    Arrays of small images stay as they are, unless they are evaluated with targets that have a place:
    these are moved where images are stored, and must fit what the model sees. Images cropped at random are stored as
    a whole, squashed to a size a little above the model's; a crop restores their shape. Where they have one size that
    is not larger, they keep it: enlarged pixels are blurred, and thin parts of masks would be sampled twice. All others
    are stored as the model sees them.
    """
    small = dataset.size is not None and max(dataset.size) <= 2 * max(preprocess.image_size)
    if dataset.size is not None and small and (cropped or not _placed(dataset)):
        return Preprocess(image_size=dataset.size, channels=preprocess.channels)
    if not cropped:
        return preprocess
    room = tuple(round(side * _ROOM) for side in preprocess.image_size)
    least = tuple(side * _LEAST for side in preprocess.image_size)
    own = _one_size(dataset)
    fits = own is not None and all(map(lambda low, side, high: low <= side <= high, least, own, room))
    height, width = own if own is not None and fits else room
    return replace(preprocess, image_size=(height, width), resize="squash", crop=1.0)


def _placed(dataset: Dataset) -> bool:
    """Whether targets move with the pixels, such as boxes, masks and depth."""
    return any(type(target).move is not Target.move for target in dataset.schema.values())


def _one_size(dataset: Dataset) -> Size | None:
    """The height and width that some image files, evenly spaced, all have; None if they differ or are not known."""
    found: set[Size] = set()
    for at in range(min(_LOOKED_AT, len(dataset))):
        index = at * len(dataset) // min(_LOOKED_AT, len(dataset))
        try:
            if (data := dataset.encoded(index)) is None:
                return None
            header = inspect(data, name=dataset.where(index))
        except BrokenImage:
            continue  # left out, with a message, where it is decoded
        found.add((header.height, header.width))
        if len(found) > 1:
            return None
    return next(iter(found), None)


def stored_bytes(splits: Splits, preprocess: Preprocess, *, cropped: bool) -> int:
    """The bytes of all images as a run packs them; what two splits share counts once."""
    parts = stored_parts(splits, preprocess, cropped=cropped)
    return sum(len(part) * each.channels * prod(each.image_size) for part, each in parts)


def stored_parts(splits: Splits, preprocess: Preprocess, *, cropped: bool) -> set[tuple[Dataset, Preprocess]]:
    """The data sets that a run packs, and how each is fitted; `cropped` says whether training crops at random."""
    to_learn = stored_as(splits.train, preprocess, cropped=cropped)
    judged = [part for part in (splits.val, splits.test) if part is not None]
    sizes = [(splits.train, to_learn), *((part, stored_as(part, preprocess, cropped=False)) for part in judged)]
    return {(whole_of(part, whole=each == to_learn), each) for part, each in sizes}


def whole_of(dataset: Dataset, *, whole: bool) -> Dataset:
    """The data set whose images `pack` keeps: that which targets were put on, or which a part was carved out of."""
    if isinstance(dataset, Retargeted):
        return whole_of(dataset.whole, whole=whole)
    if whole and dataset.array is None and isinstance(dataset, RandomSubset):
        return whole_of(dataset.whole, whole=False)
    return dataset
