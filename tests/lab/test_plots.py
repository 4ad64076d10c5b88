from vitrail.lab.plots import by_name, chart, line


def test_a_line_has_the_means_and_intervals_of_all_seeds() -> None:
    results = [{"a": {"x": [1.0, 2.0]}}, {"a": {"x": [3.0, 4.0]}}]
    found = line("one", [1, 2], results, "a", "x")
    assert list(found.points) == [(1, 2.0), (2, 3.0)]
    assert found.band[0][0] < 2.0 < found.band[0][1]
    assert by_name(results, [1, 2], {"x": "one"}, "a") == [found]
    assert "one" in chart("Title", [found], "text", x="n", y="t").source
