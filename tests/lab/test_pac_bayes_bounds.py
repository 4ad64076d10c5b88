import itertools
import math

import numpy as np
import pytest

from vitrail.lab.pac_bayes_bounds import BOUNDS, bernoulli_kl, coded_bits, complexity, kl_inverse, source_form

pytest.importorskip("scipy")


def test_the_code_has_room_for_every_list() -> None:
    """Kraft's inequality: the sum of 2^-bits over all lists of a length is at most 1."""
    for levels, count in ((2, 6), (3, 5)):
        lists = itertools.product(range(levels), repeat=count)
        assert sum(2 ** -coded_bits(symbols, levels) for symbols in lists) <= 1
    assert sum(math.exp(-complexity(bits)) * 2**bits for bits in range(1, 1000)) <= 1


def test_equal_symbols_cost_little_and_even_ones_their_entropy() -> None:
    assert coded_bits([1] * 100, 3) < 25
    assert math.isclose(
        coded_bits([0, 1] * 500, 2), 1000 + 2 * math.log2(1001) - 0.5 * math.log2(500 * math.pi), rel_tol=1e-3
    )


def test_values_by_hand() -> None:
    assert math.isclose(source_form(0.1, 10.0, 1001, 0.05), 0.1 + math.sqrt((10 + math.log(40_040)) / 2000))
    assert math.isclose(bernoulli_kl(0.2, 0.5), 0.2 * math.log(0.4) + 0.8 * math.log(1.6))
    p = kl_inverse(0.2, 30.0, 1000, 0.05)
    assert math.isclose(bernoulli_kl(0.2, p), (30 + math.log(2 * math.sqrt(1000) / 0.05)) / 1000, rel_tol=1e-6)
    assert math.isclose(kl_inverse(0.0, 0.0, 100, 0.05), 1 - math.exp(-math.log(400) / 100), rel_tol=1e-6)


@pytest.mark.parametrize("name", BOUNDS)
def test_a_bound_grows_with_error_and_bits_and_lies_above_the_error(name: str) -> None:
    bound = BOUNDS[name]
    assert 0.1 < bound(0.1, 10, 5000, 0.05) < bound(0.1, 100, 5000, 0.05) < bound(0.2, 100, 5000, 0.05)
    assert bound(0.1, 1e6, 1000, 0.05) >= 1.0


@pytest.mark.parametrize("name", BOUNDS)
def test_it_holds_for_the_best_of_many_models_chosen_on_the_data(name: str) -> None:
    """1,000 coins with true error 0.5, the one with the lowest observed error is chosen: KL = log 1,000."""
    observed = np.random.default_rng(0).binomial(500, 0.5, size=(400, 1000)).min(axis=1) / 500
    held = [BOUNDS[name](float(error), math.log(1000), 500, 0.05) >= 0.5 for error in observed]
    assert np.mean(held) >= 0.95
