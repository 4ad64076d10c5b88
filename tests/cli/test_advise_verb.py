"""The verb `advise`: how limits are written."""

import pytest

from vitrail.cli.advise_verb import _LATENCY, _MEMORY, quantity
from vitrail.errors import ConfigError


def test_limits_have_units() -> None:
    assert quantity("20ms", "latency", _LATENCY) == 20
    assert quantity("0.5 s", "latency", _LATENCY) == 500
    assert quantity("1GiB", "memory", _MEMORY) == 1024
    assert quantity("500MB", "memory", _MEMORY) == pytest.approx(476.8, abs=0.1)
    assert quantity(None, "latency", _LATENCY) is None


@pytest.mark.parametrize("text", ["20", "ms", "20 minutes", "-1ms"])
def test_a_number_without_a_known_unit_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="unit"):
        quantity(text, "latency", _LATENCY)
