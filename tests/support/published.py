"""Published sizes against counted ones."""

from collections.abc import Iterable
from typing import NamedTuple

import pytest

from vitrail.profiling.count import blank_images, count, named_or_given


class Published(NamedTuple):
    """What a paper or a peer says of a model: millions of parameters and billions of multiply-accumulates."""

    parameters: float
    gmacs: float
    source: str


def sizes(names: Iterable[str]) -> pytest.MarkDecorator:
    """Each name of a family; the first and the last always, those between with what is slow."""
    first, *between, last = names
    slow = (pytest.param(name, marks=pytest.mark.slow) for name in between)
    return pytest.mark.parametrize("name", [first, *slow, last])


def check_published(name: str, published: Published, tolerance: float = 0.01) -> None:
    """Holds a named model against its published sizes; 1 % is what rounding in papers leaves open."""
    model = named_or_given(name, None)
    parameters, macs, _ = count(model, blank_images(model, None, 1)).total
    assert abs(parameters / 1e6 / published.parameters - 1) <= tolerance, (name, parameters)
    assert abs(macs / 1e9 / published.gmacs - 1) <= tolerance, (name, macs)
