"""The data of a probe: parts to fit, to validate and to test on, and features of their images by layer."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from vitrail.data.broken import Tally
from vitrail.data.dataset import Dataset, Found, RandomSubset, Splits, Subset
from vitrail.data.feeds.choice import make_feed, open_images
from vitrail.data.feeds.feed import ImageSet
from vitrail.data.feeds.pack_size import stored_as
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.opening import find
from vitrail.data.split import align, carve
from vitrail.errors import ConfigError, DataError, InputError
from vitrail.explain.attention.layer import has_class_token
from vitrail.hardware import inference_batch_size
from vitrail.models.backbone import Backbone, Features

Source = str | Path | Dataset | Found | Splits
Pool = Literal["auto", "class", "mean"]
TEST_SHARE, VALIDATION_SHARE = 0.2, 0.1


class Parts(NamedTuple):
    """Images to fit on, to choose penalties on, and to test on; `origin` says where the test images are from."""

    fit: Dataset
    validation: Dataset
    test: Dataset
    origin: str

    def annotated(self, field: str) -> "Parts":
        """The same without images whose value of a field is not known."""
        fit, validation, test = (_annotated(part, field) for part in self[:3])
        return Parts(fit, validation, test, self.origin)


def _annotated(part: Dataset, field: str) -> Dataset:
    known = part.schema[field].known(part.targets[field])
    return part if bool(known.all()) else Subset(part, known.nonzero()[:, 0].tolist())


class Layer(NamedTuple):
    """A layer of the model, and which of its tokens are read."""

    block: int
    grid: str
    width: int
    reads: str  # "class token" or "mean of patches"


def divide(source: Source, *, seed: int) -> Parts:
    """The parts of a source: its own if it has them, otherwise split off by a hash of each sample's name."""
    if isinstance(source, str | Path):
        source = find(source)
    elif isinstance(source, Dataset):
        source = Found(source)
    train, validation, test = source.train, source.val, source.test
    origin = f"the test part of {train.name}"
    if test is None and validation is not None:
        test, validation, origin = validation, None, f"the validation part of {train.name}"
    if test is None:
        train, test = carve(train, TEST_SHARE, seed)
        origin = f"{100 * TEST_SHARE:g} % of {train.name}, which has one part"
    if validation is None:
        fit, validation = map(_of_whole, carve(train, VALIDATION_SHARE, seed + 1))
    else:
        fit = train
    validation, test = (align(part, train.schema) for part in (validation, test))
    if not all(len(part) for part in (fit, validation, test)):
        raise DataError(f"{train.name} has too few images to fit a probe, to choose its penalty and to test it")
    return Parts(fit, validation, test, origin)


def _of_whole(part: Dataset) -> Dataset:
    """A part of a part as a part of the whole, so that all parts are rows of one packed whole."""
    if isinstance(part, RandomSubset) and isinstance(part.whole, RandomSubset):
        return _of_whole(RandomSubset(part.whole.whole, [part.whole.indices[index] for index in part.indices]))
    return part


class Reader:
    """Pooled features B D of chosen layers of a model, for all images of a data set, batch by batch.

    `pool` "auto" reads the class token if a layer has one, otherwise the mean of the patches.
    """

    def __init__(
        self,
        model: Backbone,
        *,
        layers: Sequence[int] | None,
        pool: Pool,
        preprocess: Preprocess | None,
        batch_size: int,
    ) -> None:
        config = model.config
        self.model, self.indices, self.pool = model, model.chosen(layers), pool
        if not self.indices:
            raise ConfigError("layers is empty; leave it out to read all")
        if pool not in ("auto", "class", "mean"):
            raise ConfigError(f"pool is {pool!r}; it must be 'auto', 'class' or 'mean'")
        default = model.preprocess or Preprocess(image_size=config.image_size, channels=config.channels)
        self.preprocess = default if preprocess is None else preprocess
        device = next(model.parameters()).device
        self.batch_size = inference_batch_size(device, self.preprocess.image_size, most=batch_size)
        self._has_class = has_class_token(model)

    def open(self, parts: Parts) -> tuple[ImageSet, ImageSet, ImageSet]:
        """All images of the parts, stored as training stores validation images, so that preprocessing is the same.

        They are packed, or streamed where there are too many. Broken images are left out; the limit is for all parts
        together.
        """
        tally = Tally(len(parts.fit) + len(parts.validation) + len(parts.test))
        fit, validation, test = (
            open_images(part, stored_as(part, self.preprocess, cropped=False), tally=tally, whole=True)
            for part in parts[:3]
        )
        return fit, validation, test

    def layers(self) -> list[Layer]:
        """The chosen layers, as a black image shows them."""
        size, device = self.preprocess.image_size, next(self.model.parameters()).device
        every = self._intermediates(
            self.preprocess.normalise(torch.zeros(1, self.preprocess.channels, *size)).to(device)
        )
        return [
            Layer(
                index,
                f"{features.grid[0]} x {features.grid[1]}",
                features.patches.shape[2],
                "class token" if self._reads_class(features) else "mean of patches",
            )
            for index, features in zip(self.indices, every, strict=True)
        ]

    def read(self, images: ImageSet, field: str) -> Iterator[tuple[list[Tensor], Tensor, Tensor]]:
        """Features B D of each layer, float32, the targets B ... of a field, and the numbers B of the images."""
        device, prepare = next(self.model.parameters()).device, images.prepare(self.preprocess)
        feed = make_feed(images, batch_size=self.batch_size, seed=0, shuffle=False, device=device)
        for batch in feed.epoch(0):
            vectors = [self._pooled(features) for features in self._intermediates(prepare(batch.images))]
            yield vectors, batch.targets[field], batch.ids.cpu()

    def _intermediates(self, images: Tensor) -> list[Features]:
        """Of prepared images B C H W."""
        return self.model.intermediates(images.to(next(self.model.parameters()).dtype), self.indices)

    def _reads_class(self, features: Features) -> bool:
        has_one = self._has_class and features.prefix.shape[1] > 0
        if self.pool == "class" and not has_one:
            raise ConfigError("pool is 'class', but not every chosen layer has a class token; use 'mean' or 'auto'")
        return has_one and self.pool != "mean"

    def _pooled(self, features: Features) -> Tensor:
        """B D, in float32."""
        vectors = features.prefix[:, 0] if self._reads_class(features) else features.patches.float().mean(dim=1)
        if not torch.isfinite(vectors).all():
            raise InputError("the features of the model are not finite (NaN or infinite)")
        return vectors.float()
