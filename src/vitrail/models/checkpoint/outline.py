"""The outline of a model: built without memory, held against the tensors of its file before anything is allocated.

A config is a few numbers that somebody wrote; a file of some kilobytes can ask for a model of terabytes. Here its
numbers have bounds, its layers are built on the meta device, and building stops where there are more of them than the
file can fill.
"""

import contextlib
import reprlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from vitrail.config import to_dict
from vitrail.errors import CheckpointError, VitrailError
from vitrail.models.initialise import SkipInit

MAX_NUMBER = 2**20  # of a whole number in a config
MAX_CLASSES = 2**24
MAX_SIDE = 2**14  # pixels of an image
MAX_TABLES = 2**30  # bytes that a model computes for itself, such as tables of positions
_REPEATED = ("depth", "layers", "convs", "halvings", "attention_blocks")  # what numbers that count layers are called
_MAX_CALLS, _CALLS_PER_TENSOR = 10_000, 300  # of functions of torch, for a model with so many tensors

Module = TypeVar("Module", bound=nn.Module)


def check_numbers(config: Any, *, tensors: int | None = None) -> None:
    """CheckpointError for a config with a number that no model has, or more layers than a file has tensors."""
    _check_values(to_dict(config), "")
    if tensors is not None:
        check_layers(to_dict(config), tensors)


def check_layers(config: Any, tensors: int) -> None:
    """CheckpointError for a config, as plain values, with more layers than a file has tensors."""
    for name, value in _named(config):
        counts = [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, int)]
        if any(word in name for word in _REPEATED) and sum(counts) > tensors:
            raise CheckpointError(f"the config says {name} = {reprlib.repr(value)}; the file has {tensors:,} tensors")


def outlined(make: Callable[[], Module], *, tensors: int) -> Module:
    """What `make` builds, without memory; CheckpointError where it has far more layers than `tensors` could fill."""
    try:
        with torch.device("meta"), SkipInit(), _CallLimit(_MAX_CALLS + _CALLS_PER_TENSOR * tensors):
            made = make()
    except VitrailError:
        raise
    except (RuntimeError, ValueError, TypeError, OverflowError, MemoryError, RecursionError) as error:
        reason = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        raise CheckpointError(f"the config is not that of a model: {reason}") from error
    computed = sum(one.numel() * one.element_size() for one in made.buffers())
    if computed > MAX_TABLES:
        raise CheckpointError(f"the config asks for tables of {computed:,} bytes; the most is {MAX_TABLES:,}")
    return made


class _CallLimit(TorchFunctionMode):
    """In this context torch is called so many times at most: a model of a million layers is given up early."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.left = most

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls the function, and counts."""
        self.left -= 1
        if self.left < 0:
            raise CheckpointError("the config has far more layers than the file has tensors")
        return func(*args, **(kwargs or {}))


def _check_values(value: Any, name: str) -> None:
    if isinstance(value, Mapping):
        for inner, item in value.items():
            _check_values(item, inner)
    elif isinstance(value, list):
        if len(value) > MAX_NUMBER:
            raise CheckpointError(f"the config has {len(value):,} values of {name}; the most is {MAX_NUMBER:,}")
        for item in value:
            _check_values(item, name)
    elif isinstance(value, int):
        most = {"num_classes": MAX_CLASSES, "image_size": MAX_SIDE}.get(name, MAX_NUMBER)
        if abs(value) > most:
            raise CheckpointError(f"the config says {name} = {value:,}; the most is {most:,}")


def _named(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield name, item
            yield from _named(item)
    elif isinstance(value, list):
        for item in value:
            yield from _named(item)


@contextlib.contextmanager
def of_file(path: object) -> Iterator[None]:
    """Names the file in an error about its numbers."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
