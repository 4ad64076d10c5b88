import math

import numpy as np
import pytest

from vitrail.errors import DataError
from vitrail.lab.power_law import PowerLaw, fit_log_line, fit_power_law, growth, left_by_power

SIZES = [100.0, 300.0, 1000.0, 3000.0, 10_000.0, 30_000.0]


@pytest.mark.parametrize("law", [PowerLaw(0.3, 5.0, 0.4), PowerLaw(0.0, 20.0, 0.2), PowerLaw(1.0, 100.0, 1.1)])
def test_a_law_is_found_again_from_every_start(law: PowerLaw) -> None:
    found = fit_power_law(SIZES, [law(x) for x in SIZES])
    assert np.allclose(found.law, law, rtol=0.02, atol=0.005)
    assert found.left < 1e-6
    assert found.agree >= 0.7
    assert math.isclose(fit_power_law(SIZES[:-1], [law(x) for x in SIZES[:-1]]).law(SIZES[-1]), law(3e4), rel_tol=0.01)


def test_noise_gives_the_same_as_scipys_curve_fit() -> None:
    optimize = pytest.importorskip("scipy.optimize")
    noise = np.random.default_rng(0).normal(0, 0.01, len(SIZES))
    y = [0.3 + 5 * x**-0.4 + more for x, more in zip(SIZES, noise, strict=True)]
    expected, _ = optimize.curve_fit(lambda x, e, a, b: e + a * x**-b, SIZES, y, p0=(0.3, 5, 0.4), maxfev=10_000)
    assert np.allclose(fit_power_law(SIZES, y).law, expected, rtol=0.02)


def test_flat_values_leave_all_variance_and_no_power() -> None:
    found = fit_power_law(SIZES, [1.0, 1.01, 1.0, 1.01, 1.0, 1.01])
    assert found.left > 0.5


def test_a_line_in_log_x_and_growth() -> None:
    assert np.allclose(fit_log_line(SIZES, [2 - 0.1 * math.log(x) for x in SIZES]), (2, -0.1))
    assert math.isclose(growth(SIZES, [x**0.5 for x in SIZES]), 0.5)
    assert growth(SIZES, [3.0] * 6) == 0.0


def test_too_few_points_are_refused() -> None:
    with pytest.raises(DataError, match="four"):
        fit_power_law([1.0, 2.0, 3.0], [1.0, 1.0, 1.0])


def test_what_a_power_leaves() -> None:
    sizes = [1.0, 2.0, 4.0, 8.0]
    assert left_by_power(sizes, [0.1 * size**0.3 for size in sizes]) == pytest.approx(0, abs=1e-9)
    assert left_by_power(sizes, [0.1, 0.4, 0.1, 0.4]) > 0.5
    assert left_by_power(sizes, [0.0, 0.1, 0.2, 0.4]) == 1
