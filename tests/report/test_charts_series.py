import xml.etree.ElementTree as ET

import pytest

from vitrail.errors import ConfigError
from vitrail.report.charts_series import Series, series

LAW = Series("law", [(1, 1), (10, 100), (100, 10_000)], [(0.9, 1.1), (90, 110), (9_000, 11_000)])


@pytest.mark.parametrize("log", [True, False])
def test_each_series_has_a_line_a_band_and_a_name(log: bool) -> None:
    drawn = ET.fromstring(
        series(
            "Law", [LAW, Series("<expected>", [(1, 1), (100, 9_999)], dashed=True)], x="n", y="t", log_x=log, log_y=log
        )
    )
    paths = [path.get("class", "") for path in drawn.iter("path")]
    assert sum(name.startswith("band") for name in paths) == 1
    assert sum(name.startswith("curve") and "named" not in name for name in paths) == 2
    texts = [text.text for text in drawn.iter("text")]
    assert {"law", "<expected>", "n", "t"} <= set(texts)


def test_a_power_law_is_a_straight_line_on_logarithmic_axes() -> None:
    drawn = ET.fromstring(series("Law", [LAW], x="n", y="t", log_x=True, log_y=True))
    spots = [(float(dot.get("cx", "")), float(dot.get("cy", ""))) for dot in drawn.iter("circle")]
    (x0, y0), (x1, y1), (x2, y2) = spots
    assert (y1 - y0) / (x1 - x0) == pytest.approx((y2 - y1) / (x2 - x1), rel=1e-3)


def test_what_a_logarithm_does_not_have_is_left_out() -> None:
    drawn = ET.fromstring(
        series("Law", [Series("a", [(0, 1), (1, 0), (2, 3), (3, 4)])], x="n", y="t", log_x=True, log_y=True)
    )
    assert len(list(drawn.iter("circle"))) == 2


def test_too_many_or_empty_series_are_refused() -> None:
    with pytest.raises(ConfigError, match="series"):
        series("Many", [LAW] * 7, x="n", y="t")
    with pytest.raises(ConfigError, match="points"):
        series("None", [Series("a", [(1, -1)])], x="n", y="t", log_y=True)
