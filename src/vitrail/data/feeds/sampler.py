"""Balanced sampling: rare classes come more often in an epoch, frequent ones less often."""

import torch
from torch import Tensor

from vitrail.data.dataset import Targets
from vitrail.data.targets import Schema
from vitrail.errors import ConfigError


def strata_of(schema: Schema, targets: Targets) -> Tensor:
    """What is balanced: the class of each image, of several labels the rarest; ConfigError where there is none."""
    for name, target in schema.items():
        if target.stratum:
            return torch.tensor(target.strata(targets[name]))
    have = ", ".join(target.describe() for target in schema.values()) or "no labels"
    raise ConfigError(f"sampling=balanced needs classes, and the data have {have}; leave it out")


def expected_counts(strata: Tensor, power: float) -> Tensor:
    """How often each stratum comes in an epoch of M images, by its number in order: M -> S float64.

    A stratum of n images gets a share proportional to n^(1 - power): 0 is every image once, 1 equal shares.
    """
    counts = torch.unique(strata, return_counts=True)[1].double()
    shares = counts ** (1.0 - power)
    return len(strata) * shares / shares.sum()


def balanced_order(strata: Tensor, power: float, generator: torch.Generator) -> Tensor:
    """An epoch's order of M images, each stratum as often as `expected_counts` says, rounded up or down: M -> M.

    A number is that of an image plus M for each time that it came before. Within a stratum, the times that two images
    come differ by one at most.
    """
    total = len(strata)
    counts = torch.unique(strata, return_counts=True)[1]  # S
    start = torch.rand((), generator=generator, dtype=torch.float64)  # rounds without a bias over many epochs
    ends = (expected_counts(strata, power).cumsum(0) + start).floor().long()
    ends[-1] = total  # a sum of fractions may lie just below
    wanted = torch.diff(ends, prepend=ends.new_zeros(1)).tolist()
    drawn = []
    for members, count in zip(strata.argsort(stable=True).split(counts.tolist()), wanted, strict=True):
        shuffled, at = members[torch.randperm(len(members), generator=generator)], torch.arange(count)
        drawn.append(shuffled[at % len(members)] + total * (at // len(members)))
    return torch.cat(drawn)[torch.randperm(total, generator=generator)]
