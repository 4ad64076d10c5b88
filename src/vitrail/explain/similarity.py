"""Similarity of the layers of one or two models: linear CKA, unbiased, accumulated batch by batch.

report = cka(model, batches)                  # of each pair of its layers
report = cka(model, batches, other)           # its layers against those of another model
report["Similarity"].save("cka.svg")
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from math import isnan

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import ConfigError, InputError
from vitrail.explain.unwrap import backbone_of, eval_mode
from vitrail.models.backbone import Backbone, Features
from vitrail.report import Facts, Picture, Report, Table, Unit, Value
from vitrail.report.charts_heat import heat

MIN_BATCH = 4  # images in a batch: the estimate divides by B - 3


class Similarity:
    """Accumulates HSIC between two lists of representations of the same images (Nguyen et al. 2020, arXiv:2010.15327).

    Each batch gives an unbiased estimate (Song et al. 2012), so that the mean over batches tends to the value over all
    images for any batch size.
    """

    def __init__(self) -> None:
        self.images, self.batches = 0, 0
        self._cross = self._own = self._other = torch.zeros(())

    def update(self, ones: Sequence[Tensor], others: Sequence[Tensor] | None = None) -> None:
        """Adds a batch: one B ... for each layer; without `others`, layers are compared with each other."""
        count = len(ones[0])
        if count < MIN_BATCH:
            raise InputError(f"a batch has {count} images; CKA needs {MIN_BATCH} or more")
        first = torch.stack([centred_gram(one).flatten() for one in ones])  # L B*B
        second = first if others is None else torch.stack([centred_gram(one).flatten() for one in others])
        share = count / (count * (count - 3))  # the estimate of a batch, weighted by its images
        self._cross = self._cross + share * (first @ second.T)
        self._own = self._own + share * first.square().sum(dim=1)
        self._other = self._other + share * second.square().sum(dim=1)
        self.images, self.batches = self.images + count, self.batches + 1

    def matrix(self) -> Tensor:
        """CKA of each of L layers with each of the other M: L M, 1 for the same up to rotation and scale.

        NaN for a layer that is the same for all images.
        """
        if not self.batches:
            raise InputError("no images to compare layers on; call update with one or more batches")
        return self._cross / torch.outer(self._own, self._other).sqrt()


def centred_gram(features: Tensor) -> Tensor:
    """Inner products of B ..., centred so that products with others are unbiased estimates of HSIC: B B, float64."""
    flat = features.flatten(1)
    flat = flat - flat.mean(dim=0)  # for precision: large means would hide the differences
    gram = (flat @ flat.T).to("cpu", torch.float64).fill_diagonal_(0)
    count, sums = len(gram), gram.sum(dim=1)
    gram = gram - (sums[:, None] + sums) / (count - 2) + sums.sum() / ((count - 1) * (count - 2))
    return gram.fill_diagonal_(0)


def cka(
    model_a: nn.Module,
    batches: Iterable[Tensor | Sequence[Tensor]],
    model_b: nn.Module | None = None,
    *,
    layers: Sequence[int] | None = None,
    layers_b: Sequence[int] | None = None,
    max_batches: int | None = None,
) -> Report:
    """Linear CKA between all tokens after each block of a model, and those of itself or of a second one.

    Batches are images B C H W, preprocessed for the first model, or tuples that start with them; a second model of
    another image size gets them resized. 1: the same up to rotation and scale; 0: unrelated (Kornblith et al. 2019,
    arXiv:1905.00414; for vision transformers: Raghu et al. 2021, arXiv:2108.08810).
    """
    first, second = backbone_of(model_a), None if model_b is None else backbone_of(model_b)
    numbers = first.chosen(layers)
    numbers_b = numbers if second is None else second.chosen(layers_b)
    if second is None and layers_b is not None:
        raise ConfigError("layers_b chooses layers of a second model, but only one model was given")
    similarity, left_out = Similarity(), 0
    with eval_mode(*(model for model in (first, second) if model is not None)), torch.no_grad():
        for number, batch in enumerate(batches):
            if number == max_batches:
                break
            images = batch if isinstance(batch, Tensor) else batch[0]
            if len(images) < MIN_BATCH:  # the last batch is often small
                left_out += len(images)
                continue
            others = None if second is None else _representations(second, _resized(images, second), numbers_b)
            similarity.update(_representations(first, images, numbers), others)
    facts: dict[str, Value] = {
        "model": type(first).__name__,
        "against": "itself" if second is None else type(second).__name__,
        "images": similarity.images,
        "batches": similarity.batches,
        "images in batches that were too small": left_out,
    }
    if second is not None and second.config.image_size != first.config.image_size:
        facts["images resized for the second model"] = "{} x {}".format(*second.config.image_size)
    return _report(similarity.matrix(), numbers, numbers_b, facts, same=second is None)


def _representations(model: Backbone, images: Tensor, layers: Sequence[int]) -> list[Tensor]:
    """All tokens after the chosen blocks: B P+N D each."""
    weight = next(model.parameters())
    return [_tokens(features) for features in model.intermediates(images.to(weight), layers)]


def _resized(images: Tensor, model: Backbone) -> Tensor:
    """B C H W in the image size of a model."""
    size = model.config.image_size
    if images.shape[2:] == size:
        return images
    return F.interpolate(images, size=size, mode="bicubic", antialias=True)


def _tokens(features: Features) -> Tensor:
    return torch.cat([features.prefix, features.patches], dim=1).float()


def _report(
    matrix: Tensor, rows: Sequence[int], columns: Sequence[int], facts: dict[str, Value], *, same: bool
) -> Report:
    values = matrix.tolist()
    second = "layer" if same else "layer of the second model"
    corner = "layer" if same else "layer \N{RIGHTWARDS ARROW} second model"
    table: list[dict[str, Value]] = [
        {
            corner: row,
            **{str(column): None if isnan(value) else value for column, value in zip(columns, line, strict=True)},
        }
        for row, line in zip(rows, values, strict=True)
    ]
    units: dict[str, Unit] = dict.fromkeys([corner, *map(str, columns)], "")
    low = min([0.0, *(value for value in chain(*values) if not isnan(value))])
    drawn = heat(
        "CKA", values, rows=list(map(str, rows)), columns=list(map(str, columns)), x=second, y="layer", span=(low, 1.0)
    )
    text = "Linear CKA of every pair of layers: bright if both represent the images alike, up to rotation and scale."
    sections = (Facts("Data", facts), Table("CKA", units, table), Picture("Similarity", drawn, text))
    return Report("Similarity of layers", sections)
