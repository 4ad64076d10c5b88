"""Stateless random numbers: each is a hash of (seed, epoch, sample, name, position), the same on every device.

The numbers of a sample do not depend on its batch, the order of samples, the number of workers and machines, restarts,
or draws of other names. The hash is the finaliser of SplitMix64 (doi:10.1145/2660193.2660195).
"""

import hashlib
import math
from functools import lru_cache

import torch
from torch import Tensor

WORD = 2**64
STEP = 0x9E3779B97F4A7C15  # the golden ratio of 2^64
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
TRIES = 8  # of rejection sampling that accepts at least 95 %: all fail once in 10^10


class Stream:
    """The random numbers of a batch of samples in one epoch; ids B int64."""

    def __init__(self, seed: int, epoch: int | Tensor, ids: Tensor) -> None:
        first = _mixed(seed + STEP)
        if isinstance(epoch, Tensor):  # a CUDA graph, replayed in any epoch
            key: int | Tensor = _mix((epoch + 1) * _signed(STEP) + _signed(first))
        else:
            key = _signed(_mixed(first + (epoch + 1) * STEP))
        self.state = _mix(ids.long() * _signed(STEP) + key)  # B

    def bits(self, name: str, count: int) -> Tensor:
        """64 random bits for each sample and position: B count int64."""
        return _mix(self.state[:, None] + _columns(name, count, self.state.device))

    def uniform(self, name: str, count: int) -> Tensor:
        """Multiples of 2^-24, at least 0 and less than 1: B count float32."""
        # A float32 holds 24 bits exactly, so devices cannot round differently.
        return _shifted(self.bits(name, count), 40).float() * 2.0**-24

    def beta(self, name: str, alpha: Tensor) -> Tensor:
        """From Beta(alpha, alpha), for alpha B: B float32."""
        draws = self.uniform(name, 2 * (3 * TRIES + 1)).unflatten(1, (2, -1))  # B 2 3T+1
        # In logarithms: with a small alpha both Gamma numbers can underflow a float32.
        first, second = _log_gamma_draw(draws, alpha[:, None]).unbind(1)
        return torch.sigmoid(first - second)


def _log_gamma_draw(draws: Tensor, alpha: Tensor) -> Tensor:
    """The logarithm of a sample from Gamma(alpha), by doi:10.1145/358407.358414: ... 3T+1 -> ..."""
    above_zero = draws + 2.0**-25
    radius, angle, limit = above_zero[..., :-1].unflatten(-1, (3, TRIES)).unbind(-2)  # each ... T
    normal = (-2 * radius.log()).sqrt() * (2 * math.pi * angle).cos()
    # Sample Gamma(alpha + 1), then multiply by u^(1 / alpha) for Gamma(alpha).
    depth = (alpha + 2 / 3)[..., None]
    cube = (1 + normal / (9 * depth).sqrt()) ** 3
    log_cube = cube.clamp(min=1e-30).log()
    accepted = (cube > 0) & (limit.log() < 0.5 * normal**2 + depth * (1 - cube + log_cube))
    first = accepted.byte().argmax(-1, keepdim=True)
    chosen = (depth.log() + log_cube).gather(-1, first).squeeze(-1)
    return chosen + above_zero[..., -1].log() / alpha


def _mix(numbers: Tensor) -> Tensor:
    """The finaliser of SplitMix64, by wrapping products of int64."""
    numbers = (numbers ^ _shifted(numbers, 30)) * _signed(FIRST)
    numbers = (numbers ^ _shifted(numbers, 27)) * _signed(SECOND)
    return numbers ^ _shifted(numbers, 31)


def _shifted(numbers: Tensor, bits: int) -> Tensor:
    """A logical shift to the right; torch's own shift of an int64 repeats the sign."""
    return (numbers >> bits) & (2 ** (64 - bits) - 1)


def _mixed(number: int) -> int:
    """`_mix` of one Python int, 0 to 2^64 - 1."""
    number %= WORD
    number = (number ^ number >> 30) * FIRST % WORD
    number = (number ^ number >> 27) * SECOND % WORD
    return number ^ number >> 31


def _signed(number: int) -> int:
    """The int64 with the same bits."""
    return number - WORD if number >= WORD // 2 else number


@lru_cache(maxsize=256)
def _columns(name: str, count: int, device: torch.device) -> Tensor:
    """One constant per position of a draw: count. Cached, since copying to a GPU would synchronise."""
    key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    numbers = [_signed(_mixed(key + (position + 1) * STEP)) for position in range(count)]
    return torch.tensor(numbers, dtype=torch.int64, device=device)
