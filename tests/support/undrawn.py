"""Full-size models without data: their shapes alone, without the time that drawing weights takes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vitrail.models.initialise import SkipInit

_FILLS = {Tensor.add_, Tensor.clamp_, Tensor.copy_, Tensor.div_, Tensor.fill_, Tensor.mul_, Tensor.zero_}


class _Unfilled(TorchFunctionMode):
    """Values are not worked out where there are none: a step of an initialisation leaves its tensor as it is."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if func in _FILLS and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


@contextmanager
def without_data() -> Iterator[None]:
    """Everything that is built here is on the meta device, and no weight is drawn."""
    with torch.device("meta"), _Unfilled(), SkipInit():
        yield
