import re

from vitrail.lab.plots import by_name, chart, line


def test_a_line_has_the_means_and_intervals_of_all_seeds() -> None:
    results = [{"a": {"x": [1.0, 2.0]}}, {"a": {"x": [3.0, 4.0]}}]
    found = line("one", [1, 2], results, "a", "x")
    assert list(found.points) == [(1, 2.0), (2, 3.0)]
    assert found.band[0][0] < 2.0 < found.band[0][1]
    assert by_name(results, [1, 2], {"x": "one"}, "a") == [found]
    assert "one" in chart("Title", [found], "text", x="n", y="t").source


def test_on_a_logarithmic_axis_a_mean_is_shown_whose_interval_reaches_zero() -> None:
    results = [{"x": [1.0, 1.0]}, {"x": [1.1, 9.0]}]  # the second interval begins below 0
    shown = chart("Title", [line("one", [1, 2], results, "x")], "text", x="n", y="t", log_y=True).source
    (curve,) = re.findall(r'class="curve a" d="([^"]*)"', shown)
    assert curve.count("L") == 1  # two points
    assert line("one", [1, 2], results, "x").band[1][0] < 0
