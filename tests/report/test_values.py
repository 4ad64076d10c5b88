"""Values as people read them."""

import pytest

from vitrail.report.values import duration, show


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (365_107_584, "si", "365 M"),
        (5_362_762, "si", "5.36 M"),
        (999, "si", "999"),
        (0, "si", "0"),
        (1536, "bytes", "1.5 KiB"),
        (0, "bytes", "0 B"),
        (1023 * 1024, "bytes", "1023 KiB"),
        (0.125, "share", "12.5 %"),
        (5_362_762, "", "5,362,762"),
        (0.1, "", "0.1"),
        (None, "share", "\N{EN DASH}"),
        (True, "", "yes"),
        ("text", "", "text"),
    ],
)
def test_values_are_shown_as_people_read_them(value, unit, text):
    assert show(value, unit) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (3599.7, "1 h 0 min"), (12_000, "3 h 20 min")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text
