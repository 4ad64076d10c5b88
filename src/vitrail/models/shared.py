"""One backbone for several heads: what each of them reads comes of one pass over the images."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from vitrail.models.backbone import Backbone, BackboneConfig, Features


class Pass(NamedTuple):
    """What a backbone gave for some images."""

    images: Tensor
    features: Features
    layers: dict[int, Features]  # by the number of the block


class Shared:
    """A backbone and views of it, one for each reader, which may have a head of its own.

    Within `reading`, all views give the features of one pass; at any other time, and for any other images, each call
    is a pass of its own. `layers` are the blocks whose features readers need beside the last ones.
    """

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self.layers: tuple[int, ...] = ()
        self.views: list[Backbone] = []
        self._pass: Pass | None = None
        self._config: BackboneConfig | None = None

    def view(self, num_classes: int) -> Backbone:
        """The backbone as one reader sees it, with a new head if it has outputs of its own."""
        view = self.backbone.with_head(num_classes)
        view.features, view.intermediates = self.features, self.intermediates  # type: ignore[method-assign]
        self.views.append(view)
        return view

    @contextmanager
    def reading(self, images: Tensor) -> Iterator[Features]:
        """One pass over the images, which all views give until the block ends."""
        self._follow()
        features, found = self.backbone.read(images, self.layers)
        self._pass = Pass(images, features, dict(zip(self.layers, found, strict=True)))
        try:
            yield features
        finally:
            self._pass = None

    @contextmanager
    def selecting(self, rows: Tensor) -> Iterator[Tensor]:
        """The images `rows` B bool of the pass, whose features all views give until the block ends."""
        whole = self._pass
        assert whole is not None  # noqa: S101  (within `reading`)
        images = whole.images[rows]
        layers = {index: _rows(features, rows) for index, features in whole.layers.items()}
        self._pass = Pass(images, _rows(whole.features, rows), layers)
        try:
            yield images
        finally:
            self._pass = whole

    def features(self, images: Tensor) -> Features:
        """Those of the pass, or of a new one."""
        now = self._pass
        return now.features if now is not None and now.images is images else self.backbone.features(images)

    def intermediates(self, images: Tensor, layers: Sequence[int] | None = None) -> list[Features]:
        """Those of the pass where it has them all, or of a new one."""
        now, chosen = self._pass, self.backbone.chosen(layers)
        if now is None or now.images is not images or not now.layers.keys() >= set(chosen):
            return self.backbone.intermediates(images, layers)
        return [now.layers[index] for index in chosen]

    def _follow(self) -> None:
        """Gives all views the size, the mode and the checkpointing of the backbone."""
        config = self.backbone.config
        for view in self.views:
            if config is not self._config:
                view.config = replace(config, num_classes=view.config.num_classes)
            view.training, view.checkpointing = self.backbone.training, self.backbone.checkpointing
        self._config = config


def _rows(features: Features, rows: Tensor) -> Features:
    """The features of some images of a batch."""
    pyramid = tuple(level[rows] for level in features.pyramid)
    return Features(features.patches[rows], features.grid, features.prefix[rows], pyramid)
