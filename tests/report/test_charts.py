"""Charts: values stand where they belong, in SVG that any reader understands."""

import re
from itertools import pairwise
from math import nan
from xml.etree import ElementTree

import pytest

from vitrail.errors import ConfigError
from vitrail.report.charts import Bin, Curve, alone, calibration, curves, percent, plain, points, ticks
from vitrail.report.charts_heat import colour, heat, tiles
from vitrail.report.charts_scatter import histogram, scatter

LOSSES = (Curve("training", ((1, 2.0), (2, 1.0), (3, 0.5))), Curve("validation", ((1, 2.0), (3, 1.0))))


def spots(svg: str, cls: str) -> list[tuple[float, float]]:
    """The points of a curve's path."""
    (path,) = re.findall(f'<path class="curve {cls}" d="M([^"]+)"', svg)
    return [tuple(map(float, spot.split())) for spot in path.split("L")]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, [0, 0.25, 0.5, 0.75, 1]),
        (0.13, 0.97, [0, 0.25, 0.5, 0.75, 1]),
        (-3, 5, [-4, -2, 0, 2, 4, 6]),
        (0, 1e-3, [0, 2.5e-4, 5e-4, 7.5e-4, 1e-3]),
        (2.0, 2.0, [1, 1.5, 2, 2.5, 3]),
        (0.0, 0.0, [-0.5, -0.25, 0, 0.25, 0.5]),
    ],
)
def test_ticks_are_round_and_enclose(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.75, 0.75, [0.2, 0.4, 0.6, 0.8, 1]),  # 1.2 would follow
        (1.0, 1.0, [0.4, 0.6, 0.8, 1]),
        (0.0, 0.0, [0, 0.2, 0.4, 0.6]),
        (0.0, 1.0, [0, 0.25, 0.5, 0.75, 1]),
        (-0.5, -0.5, [-0.5, -0.4, -0.3, -0.2]),  # what is there is shown
    ],
)
def test_ticks_of_shares_stay_within_what_is_possible(low, high, expected):
    assert ticks(low, high, within=(0.0, 1.0)) == pytest.approx(expected)


@pytest.mark.parametrize(("low", "high"), [(1.0, 0.0), (nan, 1.0), (0.0, float("inf"))])
def test_ticks_refuse_an_invalid_range(low, high):
    with pytest.raises(ConfigError, match="axis"):
        ticks(low, high)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.25, "0.25"), (1234.0, "1,234"), (6e4, "60,000"), (2.5e-4, "2.5e-4"), (1e-3, "1e-3"), (1e6, "1e6")],
)
def test_plain_numbers(value, text):
    assert plain(value) == text


def test_percent():
    assert [percent(value) for value in (0.2, 0.1234, 1.0)] == ["20 %", "12.3 %", "100 %"]


def test_curves_stand_in_proportion():
    svg = curves("Loss", LOSSES)
    ElementTree.fromstring(svg)
    (x1, y1), (x2, y2), (x3, y3) = spots(svg, "a")
    assert x2 - x1 == pytest.approx(x3 - x2)
    assert y2 - y1 == pytest.approx(2 * (y3 - y2), abs=0.2)  # from 2 to 1, then to a half; y counts downwards
    assert spots(svg, "b") == [(x1, y1), (x3, y2)]


def test_curves_have_their_values_as_text():
    svg = curves("Loss", LOSSES)
    assert 'aria-label="Loss by epoch: training from 2 to 0.5, validation from 2 to 1"' in svg
    assert "<title>epoch 2: training 1</title>" in svg
    assert "<title>epoch 3: training 0.5, validation 1</title>" in svg


def test_a_gap_is_skipped_and_a_lone_point_is_a_dot():
    assert len(spots(curves("x", [Curve("a", ((1, 1.0), (2, None), (3, nan), (4, 2.0)))]), "a")) == 2
    svg = curves("x", [Curve("a", ((1, 0.5),))])
    assert "<path" not in svg
    assert '<circle class="dot a"' in svg


def test_a_long_run_has_every_point_but_not_every_stop():
    svg = curves("x", [Curve("a", [(epoch, 1 / epoch) for epoch in range(1, 1001)])])
    assert len(spots(svg, "a")) == 1000
    assert 60 <= svg.count('class="stop"') <= 121
    assert "<title>epoch 1000: a 1e-3</title>" in svg


def test_labels_of_x_are_whole_and_even():
    svg = curves("x", [Curve("a", [(epoch, 1.0) for epoch in range(1, 15)])])
    shown = [int(text) for text in re.findall(r'text-anchor="middle">(\d+)<', svg)]
    assert shown == [2, 4, 6, 8, 10, 12]


def test_the_best_is_ringed_and_the_floor_is_reached():
    svg = curves("x", [Curve("a", ((1, 5.0), (2, 6.0)))], mark=(2, 6.0), floor=0.0, small=True)
    ring = re.search(r'class="mark a" cx="([\d.]+)" cy="([\d.]+)"', svg)
    assert tuple(map(float, ring.groups())) == spots(svg, "a")[1]
    assert ">0</text>" in svg
    assert 'viewBox="0 0 300 170"' in svg


def test_a_curve_stays_within_what_is_possible():
    level = [Curve("a", ((1, 0.75), (2, 0.75)))]
    assert ">1.2<" in curves("x", level)
    assert ">1.2<" not in curves("x", level, within=(0.0, 1.0))


def test_names_are_escaped():
    svg = curves("<b>&", [Curve('"<i>"', ((1, 1.0), (2, 2.0)))])
    ElementTree.fromstring(svg)
    assert "<i>" not in svg


def test_bad_charts_are_refused():
    with pytest.raises(ConfigError, match="points"):
        curves("x", [Curve("a", ((1, nan),))])
    with pytest.raises(ConfigError, match="3 curves"):
        curves("x", [*LOSSES, LOSSES[0]])
    with pytest.raises(ConfigError, match="no predictions"):
        calibration([Bin(0.0, 0.0, 0)])


def test_calibration_bars_reach_their_accuracy():
    svg = calibration([Bin(0.0, 0.0, 0), Bin(0.75, 0.5, 30), Bin(0.8, 1.0, 10)])
    tree = ElementTree.fromstring(svg)
    half, whole = (float(rect.get("height")) for rect in tree.iter("rect") if rect.get("class") == "bar")
    assert whole == pytest.approx(2 * half)
    (over,) = (float(rect.get("height")) for rect in tree.iter("rect") if rect.get("class") == "over")
    (under,) = (float(rect.get("height")) for rect in tree.iter("rect") if rect.get("class") == "under")
    assert over == pytest.approx(whole * 0.25, abs=0.1)
    assert under == pytest.approx(whole * 0.2, abs=0.1)
    many, few = (float(rect.get("height")) for rect in tree.iter("rect") if rect.get("class") == "crowd")
    assert many == pytest.approx(3 * few, abs=0.2)
    assert "33 to 67 % sure: 50 % right of 30" in svg
    assert "mean gap 23.8 % of 40" in svg  # (30 * 0.25 + 10 * 0.2) / 40


def test_a_key_names_the_curves_and_leaves_every_place():
    svg = curves("Loss", LOSSES, x="layer", key=True)
    assert spots(svg, "a") == spots(curves("Loss", LOSSES, x="layer"), "a")
    words = [text.text for text in ElementTree.fromstring(svg).iter("text")]
    assert {"training", "validation", "1", "2", "3", "layer"} <= set(words)
    assert ">3</text>" not in curves("Loss", LOSSES, x="layer")  # there the name of the axis takes its place


def test_colours_go_from_dark_to_bright():
    light = [0.299 * red + 0.587 * green + 0.114 * blue for red, green, blue in map(colour, (0, 0.2, 0.4, 0.6, 0.8, 1))]
    assert light == sorted(light)
    assert light[-1] > light[0] + 150
    assert colour(-3) == colour(0)
    assert colour(7) == colour(1)


def test_heat_has_a_cell_for_each_value():
    svg = heat("CKA", [[0.0, 0.5, 1.0], [1.0, nan, 0.25]], rows=["0", "1"], columns=["a", "b", "c"], x="of", y="layer")
    drawing = ElementTree.fromstring(svg)
    cells = drawing.findall(".//rect[@class='cell']")
    place = [(float(cell.attrib["x"]), float(cell.attrib["y"])) for cell in cells]
    assert len(set(place)) == 6
    assert place[0][1] > place[3][1]  # the first row stands at the bottom
    assert [place[index][0] for index in range(3)] == [place[index][0] for index in range(3, 6)]
    fills = [cell.attrib["fill"] for cell in cells]
    assert fills[0] == "#{:02x}{:02x}{:02x}".format(*colour(0))
    assert fills[2] == fills[3] == "#{:02x}{:02x}{:02x}".format(*colour(1))
    assert fills[4] == "var(--line)"
    assert "<title>layer 1, of c: 0.25</title>" in svg


def test_heat_of_many_layers_leaves_out_names_and_stays_in_its_frame():
    names = [str(index) for index in range(48)]
    drawing = ElementTree.fromstring(heat("CKA", [[0.5] * 48] * 48, rows=names, columns=names, x="x", y="y"))
    width, height = map(float, drawing.attrib["viewBox"].split()[2:])
    for part in drawing.iter("rect"):
        assert float(part.attrib["x"]) + float(part.attrib["width"]) < width
        assert float(part.attrib["y"]) + float(part.attrib["height"]) < height
    shown = [text for text in drawing.findall("text") if text.text in names and text.attrib["text-anchor"] == "middle"]
    gaps = [float(b.attrib["x"]) - float(a.attrib["x"]) for a, b in pairwise(shown)]
    assert min(gaps) > 13


def test_heat_refuses_names_that_do_not_fit():
    with pytest.raises(ConfigError, match="2 x 1"):
        heat("CKA", [[1.0]], rows=["0", "1"], columns=["0"], x="x", y="y")


def test_tiles_keep_the_proportion_of_the_picture():
    svg = tiles("Maps", "data:image/png;base64,AAAA", (10, 20), x="column", y="row", span=(-1, 1))
    (image,) = ElementTree.fromstring(svg).iter("image")
    assert float(image.attrib["width"]) == pytest.approx(2 * float(image.attrib["height"]), abs=0.2)
    assert all(f">{word}</text>" in svg for word in ("column", "row", "-1", "0", "1"))
    assert "linearGradient" not in tiles("Maps", "data:image/png;base64,AAAA", (10, 20))


def test_a_chart_alone_is_a_whole_svg_file():
    drawing = ElementTree.fromstring(alone(curves("Loss", LOSSES)).encode())
    assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
    assert "--ink" in drawing[0].text


def test_points_stand_above_their_place():
    svg = points("Distance", {0: [1.0, 3.0], 1: [4.0], 2: [nan]}, x="layer", one="head")
    ElementTree.fromstring(svg)
    (a, low), (b, high), (c, top) = [
        (float(x), float(y)) for x, y in re.findall(r'<circle class="dot a many" cx="([^"]+)" cy="([^"]+)"', svg)
    ]
    assert a == b < c
    assert low - high == pytest.approx(2 * (high - top), abs=0.2)  # 1 to 3 is twice 3 to 4; y counts downwards
    assert "layer 0, head 1: 3" in svg
    assert "layer 0: mean 2, 1 to 3 of 2" in svg
    assert "means from 2 to 4" in svg
    with pytest.raises(ConfigError, match="'Nothing'"):
        points("Nothing", {0: []}, x="layer", one="head")


def dots(svg: str) -> list[tuple[float, float]]:
    """The points of a scatter plot."""
    return [(float(x), float(y)) for x, y in re.findall(r'<path d="M([\d.]+) ([\d.]+)h0"', svg)]


def test_a_right_prediction_lies_on_the_line():
    svg = scatter("Age", [0.0, 10.0, 20.0], [0.0, 10.0, 5.0], band=2.0)
    ElementTree.fromstring(svg)
    (x1, y1), (x2, y2), (x3, y3) = dots(svg)
    line = re.search(r'class="ideal" x1="([^"]+)" y1="([^"]+)" x2="([^"]+)" y2="([^"]+)"', svg)
    left, base, right, top = map(float, line.groups())
    slope = (top - base) / (right - left)
    assert [y1, y2] == pytest.approx([base + slope * (x - left) for x in (x1, x2)], abs=0.2)
    assert y3 > base + slope * (x3 - left)  # too low; y counts downwards
    assert "mean absolute error 5" in svg
    assert "\N{PLUS-MINUS SIGN} 2" in svg
    assert "band" not in scatter("Age", [0.0, 1.0], [0.0, nan])


def test_a_scatter_plot_of_very_many_samples_stays_small():
    many = [index / 7 for index in range(10_001)]
    svg = scatter("x", many, many, small=True)
    assert 500 <= len(dots(svg)) <= 1000
    assert "10,001 samples" in svg
    assert 'viewBox="0 0 300' in svg


def test_a_histogram_counts_every_value_once():
    values = [-1.0, -0.5, 0.1, 0.2, 0.3, 2.0, nan]
    svg = histogram("Residuals", values, x="error")
    ElementTree.fromstring(svg)
    counts = [int(count) for count in re.findall(r"<title>[^<]*: (\d+)</title>", svg)]
    assert sum(counts) == 6
    assert 'class="ideal"' in svg  # zero
    assert 'class="ideal"' not in histogram("Residuals", [3.0, 3.0], x="error", bins=4)


@pytest.mark.parametrize("draw", [lambda: scatter("x", [nan], [1.0]), lambda: histogram("x", [], x="y")])
def test_charts_of_nothing_are_refused(draw):
    with pytest.raises(ConfigError, match="no"):
        draw()


def test_a_scatter_plot_needs_pairs():
    with pytest.raises(ConfigError, match="2 true"):
        scatter("x", [1.0, 2.0], [1.0])
