"""Modules compiled to one graph, for tests that they can be."""

from collections.abc import Callable
from typing import Any

import torch


def compiled_whole(module: Callable[..., Any], *, backend: str = "eager") -> Callable[..., Any]:
    """One graph without a break, for inputs of one shape: guards against others would take a third of the time."""
    torch._dynamo.reset()
    options = {"guard_filter_fn": lambda guards: [False] * len(guards)}
    return torch.compile(module, fullgraph=True, backend=backend, options=options)
