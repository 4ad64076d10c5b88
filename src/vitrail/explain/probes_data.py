"""What a probe learns from and what it is judged by: parts of one source, and features of them by layer."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from vitrail.data.augment import AugmentConfig, Prepare
from vitrail.data.batches import Batches
from vitrail.data.broken import Tally
from vitrail.data.cache import Packed, pack
from vitrail.data.dataset import Carved, Dataset, Found, Splits
from vitrail.data.source import find
from vitrail.data.split import align, carve
from vitrail.data.stored import stored_size
from vitrail.errors import ConfigError, DataError, InputError, Unsupported
from vitrail.layers.tokens import PrefixTokens
from vitrail.models.backbone import Backbone, Features

Source = str | Path | Dataset | Found | Splits
Pool = Literal["auto", "class", "mean"]
TEST_SHARE, HELD_SHARE = 0.2, 0.1


class Parts(NamedTuple):
    """Images to fit on, to choose penalties by, and to judge by; `how` says where they come from."""

    fit: Dataset
    held: Dataset
    test: Dataset
    how: str


class Layer(NamedTuple):
    """Where one layer stands in the model, and which of its tokens are read."""

    number: int
    grid: str
    width: int
    reads: str  # "class token" or "mean of patches"


def divide(source: Source, *, seed: int) -> Parts:
    """The parts of a source: its own where it has them, else carved out by a hash of each sample's name."""
    if isinstance(source, str | Path):
        source = find(source)
    elif isinstance(source, Dataset):
        source = Found(source)
    train, own, test = source.train, source.val, source.test
    if train.multi_label:
        raise Unsupported(f"{train.name} has several labels an image; a probe tells classes apart, one an image")
    if len(train.classes) < 2:
        raise DataError(f"{train.name} has one class only, {train.classes[0]!r}; a probe needs two or more")
    how = f"the test part of {train.name}"
    if test is None and own is not None:
        test, own, how = own, None, f"the validation part of {train.name}"
    if test is None:
        train, test = carve(train, TEST_SHARE, seed)
        how = f"{100 * TEST_SHARE:g} % of each class of {train.name}, which has one part"
    fit, held = map(_of_whole, carve(train, HELD_SHARE, seed + 1)) if own is None else (train, own)
    held, test = (align(part, train.classes, multi_label=False) for part in (held, test))
    if not all(len(part) for part in (fit, held, test)):
        raise DataError(f"{train.name} has too few images to fit a probe, to choose its penalty and to judge it")
    return Parts(fit, held, test, how)


def _of_whole(part: Dataset) -> Dataset:
    """A part of a carved part as one of what that was carved out of: all parts are rows of one packed whole."""
    if isinstance(part, Carved) and isinstance(part.whole, Carved):
        return _of_whole(Carved(part.whole.whole, [part.whole.indices[index] for index in part.indices]))
    return part


class Reader:
    """Pooled features B D of the chosen layers of a model, for all images of a data set, batch by batch.

    `pool` "auto" reads the class token where a layer has one, else the mean of the patches.
    """

    def __init__(
        self,
        model: Backbone,
        *,
        layers: Sequence[int] | None,
        pool: Pool,
        prepare: Callable[[Tensor], Tensor] | None,
        batch_size: int,
    ) -> None:
        config = model.config
        self.model, self.numbers, self.pool, self.batch_size = model, model.chosen(layers), pool, batch_size
        if not self.numbers:
            raise ConfigError("no layers are named; leave them out to read all")
        if pool not in ("auto", "class", "mean"):
            raise ConfigError(f"pool is {pool!r}; it must be 'auto', 'class' or 'mean'")
        self.prepare = prepare or Prepare(AugmentConfig(), image_size=config.image_size, channels=config.channels)
        parts = [part for part in model.modules() if isinstance(part, PrefixTokens)]
        self._has_class = any(part.class_token is not None for part in parts)

    def packed(self, parts: Parts) -> tuple[Packed, Packed, Packed]:
        """All images of the parts, kept as training keeps those that it judges by: `prepare` sees the same pixels.

        Broken ones are left out; how many there may be is counted over all parts together.
        """
        tally = Tally(len(parts.fit) + len(parts.held) + len(parts.test))
        return self._packed(parts.fit, tally), self._packed(parts.held, tally), self._packed(parts.test, tally)

    def _packed(self, dataset: Dataset, tally: Tally) -> Packed:
        config = self.model.config
        size = stored_size(dataset, config.image_size, cropped=False)
        return pack(dataset, size=size, channels=config.channels, tally=tally, whole=True)

    def layers(self, packed: Packed) -> list[Layer]:
        """What the chosen layers are like, seen by one image."""
        first = next(weight for weight in self.model.parameters())
        found = self._intermediates(packed.images[:1].to(first.device))
        return [
            Layer(
                number,
                f"{features.grid[0]} x {features.grid[1]}",
                features.patches.shape[2],
                "class token" if self._reads_class(features) else "mean of patches",
            )
            for number, features in zip(self.numbers, found, strict=True)
        ]

    def read(self, packed: Packed) -> Iterator[tuple[list[Tensor], Tensor, slice]]:
        """Features B D of each layer, float32, labels B, and which images these are."""
        where, start = next(self.model.parameters()).device, 0
        batches = Batches(packed, batch_size=self.batch_size, seed=0, shuffle=False, device=where)
        for batch in batches.epoch(0):
            vectors = [self._pooled(features) for features in self._intermediates(batch.images)]
            yield vectors, batch.labels, slice(start, start + len(batch.labels))
            start += len(batch.labels)

    def _intermediates(self, images: Tensor) -> list[Features]:
        dtype = next(self.model.parameters()).dtype
        return self.model.intermediates(self.prepare(images).to(dtype), self.numbers)

    def _reads_class(self, features: Features) -> bool:
        has_one = self._has_class and features.prefix.shape[1] > 0
        if self.pool == "class" and not has_one:
            raise ConfigError("pool is 'class', but not every chosen layer has a class token; use 'mean' or 'auto'")
        return has_one and self.pool != "mean"

    def _pooled(self, features: Features) -> Tensor:
        """B D, in float32."""
        vectors = features.prefix[:, 0] if self._reads_class(features) else features.patches.float().mean(dim=1)
        if not torch.isfinite(vectors).all():
            raise InputError("the model answers with numbers that are not finite; nothing can be learned from them")
        return vectors.float()
