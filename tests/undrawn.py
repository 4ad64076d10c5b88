"""Full-size models without data: their shapes alone, without the time that drawing weights takes."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from vitrail.models.initialise import Undrawn


@contextmanager
def without_data() -> Iterator[None]:
    """Everything that is built here is on the meta device, and no weight is drawn."""
    with torch.device("meta"), Undrawn():
        yield
