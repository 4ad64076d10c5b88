"""How images are kept for a run: at which size, and how many bytes that takes."""

from math import prod

from vitrail.data.dataset import Carved, Dataset, Relabelled, Splits

_ROOM = 8 / 7  # how much larger images are stored that are cropped at random


def stored_size(dataset: Dataset, size: tuple[int, int], *, cropped: bool) -> tuple[int, int]:
    """The size at which images are kept: their own where it is one and not much larger, or else the model's."""
    if dataset.size is not None and max(dataset.size) <= 2 * max(size):
        return dataset.size
    return (round(size[0] * _ROOM), round(size[1] * _ROOM)) if cropped else size


def stored_bytes(splits: Splits, size: tuple[int, int], *, channels: int, cropped: bool) -> int:
    """The bytes of all images as a run packs them for a model of some size; what two splits share counts once."""
    to_learn = stored_size(splits.train, size, cropped=cropped)
    judged = [part for part in (splits.val, splits.test) if part is not None]
    sizes = [(splits.train, to_learn), *((part, stored_size(part, size, cropped=False)) for part in judged)]
    kept = {(_kept(part, whole=each == to_learn), each) for part, each in sizes}
    return sum(len(part) * channels * prod(each) for part, each in kept)


def _kept(dataset: Dataset, *, whole: bool) -> Dataset:
    """The data set whose images `pack` keeps: that which labels were put on, or which a part was carved out of."""
    if isinstance(dataset, Relabelled):
        return _kept(dataset.whole, whole=whole)
    if whole and dataset.array is None and isinstance(dataset, Carved):
        return _kept(dataset.whole, whole=False)
    return dataset
