# mypy: ignore-errors
"""Triton, if it is installed: without it, modules with kernels can be imported, but their kernels cannot be called."""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import torch

if find_spec("triton"):
    import triton
    import triton.language as tl
else:
    triton = tl = None


def jit(*changing: str) -> Callable:
    """A decorator for kernels: `changing` names the integers that must not cause a new compilation."""
    if triton is None:
        return lambda kernel: kernel
    return triton.jit(do_not_specialize=list(changing)) if changing else triton.jit


@cache
def processors(device: torch.device) -> int:
    """Number of multiprocessors of a GPU; 1 on a CPU (Triton's interpreter)."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
