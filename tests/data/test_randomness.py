"""Random numbers without a state: right, even, independent, and the same in every company."""

import hashlib
import math

import pytest
import torch

from vitrail.data.randomness import TRIES, Stream, _log_gamma_draw, _mix

IDS = torch.tensor([0, 1, 7, 49_999, 2**40 + 3])


def splitmix(number: int) -> int:
    """The reference in whole numbers."""
    number &= 2**64 - 1
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return number ^ (number >> 31)


def expected(seed: int, epoch: int, sample: int, name: str, position: int) -> int:
    golden = 0x9E3779B97F4A7C15
    key = splitmix(splitmix(seed + golden) + (epoch + 1) * golden)
    column = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    return splitmix(splitmix(sample * golden + key) + splitmix(column + (position + 1) * golden))


def test_hash_is_that_of_the_published_generator():
    # The first numbers of SplitMix64 with the seeds 0 and 1234567.
    golden = 0x9E3779B97F4A7C15 - 2**64
    hashed = _mix(torch.tensor([golden, 1234567 + golden]))
    assert [int(number) % 2**64 for number in hashed] == [0xE220A8397B1DCDAF, 6457827717110365317]


@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (3, 117), (2**63 - 1, 10**6)])
def test_bits_agree_with_whole_numbers(seed, epoch):
    bits = Stream(seed, epoch, IDS).bits("crop", 3)
    for row, sample in zip(bits.tolist(), IDS.tolist(), strict=True):
        assert [number % 2**64 for number in row] == [
            expected(seed, epoch, sample, "crop", place) for place in range(3)
        ]


def test_uniform_numbers_are_the_highest_24_bits():
    numbers = Stream(5, 2, IDS).uniform("flip", 1)[:, 0]
    assert numbers.tolist() == [(expected(5, 2, sample, "flip", 0) >> 40) / 2**24 for sample in IDS.tolist()]


def test_uniform_numbers_are_even():
    numbers = Stream(0, 0, torch.arange(100_000)).uniform("a", 2)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    for column in numbers.T:
        counts = torch.histc(column, 100, 0, 1)
        chi_square = ((counts - 1000) ** 2 / 1000).sum()
        assert 60 < chi_square < 150  # 99 degrees of freedom: 99.9 % lie within


def test_draws_do_not_know_each_other():
    ids = torch.arange(50_000)
    plain = Stream(0, 0, ids).uniform("a", 2)
    others = [
        plain[:, 1],
        plain[:, 0].roll(1),  # the neighbouring sample
        Stream(0, 1, ids).uniform("a", 1)[:, 0],
        Stream(1, 0, ids).uniform("a", 1)[:, 0],
        Stream(0, 0, ids).uniform("b", 1)[:, 0],
        Stream(1, 0, ids - 1).uniform("a", 1)[:, 0],
    ]
    for other in others:
        correlation = torch.corrcoef(torch.stack([plain[:, 0], other]))[0, 1]
        assert abs(correlation) < 4 / math.sqrt(len(ids))
        pairs = torch.histc((plain[:, 0] * 8).floor() * 8 + (other * 8).floor(), 64, 0, 64)
        assert ((pairs - len(ids) / 64) ** 2 / (len(ids) / 64)).sum() < 110  # 63 degrees of freedom


def test_company_and_order_change_nothing():
    whole = Stream(3, 4, torch.arange(97))
    chosen = torch.tensor([96, 5, 0])
    alone = Stream(3, 4, chosen)
    assert torch.equal(whole.uniform("a", 7)[chosen], alone.uniform("a", 7))
    assert torch.equal(whole.uniform("a", 7)[:, :2], whole.uniform("a", 2))
    alpha = torch.full((97,), 0.4)
    assert torch.allclose(whole.beta("b", alpha)[chosen], alone.beta("b", alpha[chosen]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.8, 1.0, 2.0, 8.0])
def test_beta_has_its_moments_and_quantiles(alpha):
    count = 40_000
    numbers = Stream(0, 0, torch.arange(count)).beta("mix", torch.full((count,), alpha))
    assert numbers.isfinite().all()
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(numbers.mean() - 0.5) < 4 * math.sqrt(variance / count)
    assert abs(numbers.var() / variance - 1) < 0.03
    peer = torch.distributions.Beta(alpha, alpha).sample((count,))
    places = torch.linspace(0.02, 0.98, 49)
    shares = [torch.searchsorted(drawn.sort().values, places) / count for drawn in (numbers, peer)]
    assert (shares[0] - shares[1]).abs().max() < 1.95 * math.sqrt(2 / count)  # Kolmogorov and Smirnov, 0.1 %


@pytest.mark.parametrize("alpha", [0.05, 0.3, 1.0])
def test_gamma_rejects_what_it_must(alpha):
    draws = torch.rand(200_000, 3 * TRIES + 1)
    found = _log_gamma_draw(draws, torch.full((len(draws),), alpha))
    above = (found - (draws[:, -1] + 2**-25).log() / alpha).exp()  # from Gamma(alpha + 1)
    # Without the rejection the second moment is 2 to 7 % too large.
    assert abs(above.square().mean() / ((alpha + 1) * (alpha + 2)) - 1) < 0.015
