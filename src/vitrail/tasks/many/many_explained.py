"""The outputs of many tasks that can be explained, side by side."""

from collections.abc import Mapping

import torch
from torch import Tensor

from vitrail.models.backbone import Backbone, Features
from vitrail.models.shared import Shared


class ManyOutputs:
    """What a view of the backbone is made of: `features` reads for all tasks in one pass, `outputs` joins theirs.

    Methods of an object, not functions within one: a copy of the view then reads the copy of the backbone.
    """

    def __init__(self, shared: Shared, views: Mapping[str, Backbone]) -> None:
        self.shared, self.views = shared, dict(views)
        self._read: dict[str, Features] = {}
        self._last: Features | None = None

    def features(self, images: Tensor) -> Features:
        """The last features; what tasks read beside them is kept for `outputs`."""
        with self.shared.reading(images) as last:
            self._read = {name: view.features(images) for name, view in self.views.items()}
        self._last = last
        return last

    def outputs(self, last: Features) -> Tensor:
        """The outputs of all tasks: B K."""
        read = {name: last if own is self._last else own for name, own in self._read.items()}
        return torch.cat([view.classify(read[name]).float() for name, view in self.views.items()], dim=1)
