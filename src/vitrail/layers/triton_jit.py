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


@jit()
def kept(seed, at, dropped):
    """Whether dropout keeps the number at a place: a hash of 32 bits, far cheaper than Triton's own random numbers.

    Wellons' `lowbias32`, with the seed between its two rounds: masks of two seeds are not shifted copies of each other.
    """
    bits = at.to(tl.uint32)
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D + seed.to(tl.uint32) * 0x9E3779B1
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    return (bits ^ (bits >> 16)) >= dropped.to(tl.uint32)


def threshold(rate: float) -> int:
    """The number of hashes, of 2^32, that are dropped at a rate."""
    return min(round(rate * (1 << 32)), (1 << 32) - 1)
