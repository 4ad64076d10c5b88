"""Sections as HTML: escaped, accessible, without network."""

import pytest
from support.html_page import HtmlPage

from vitrail.report import Code, Facts, Gallery, Group, Line, Matrix, Picture, Report, Shot, Table, Text, section_html
from vitrail.report.charts import Curve, curves
from vitrail.report.markup import anchor, page

NASTY = "<script>alert(1)</script> & “co”"
PNG = "data:image/png;base64,iVBORw0KGgo="
SVG = curves("Loss", [Curve("training", [(1, 2.0), (2, 1.0)])])
SECTIONS = (
    Facts(NASTY, {NASTY: NASTY}),
    Table("Table", {NASTY: "", "share": "share"}, [{NASTY: NASTY, "share": 0.5}] * 3, bars=True, fold_after=2),
    Text("Text", f"- {NASTY}\n- two\n{NASTY}"),
    Code("Code", NASTY),
    Picture("Picture", PNG, NASTY),
    Matrix("Matrix", [NASTY, "b"], [NASTY, "b"], [[5, 1], [0, 7]]),
    Gallery("Gallery", NASTY, (Shot((PNG, PNG), (Line(NASTY, "bad"), Line(NASTY, "soft")), NASTY), Shot((PNG, PNG)))),
    Group("Group", (Picture(NASTY, SVG, NASTY, legend=(NASTY,)), Text(NASTY, NASTY), Text(NASTY, "x", folded=True)), 2),
    Text(NASTY, NASTY, folded=True),
)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.kind)
def test_every_section_is_escaped_and_closed(section):
    text = Report(NASTY, (section,)).to_html()
    read = HtmlPage(text)
    assert NASTY not in text
    assert NASTY in read.text
    assert all(image["src"].startswith("data:image/") for image in read.all("img"))
    assert all(head["scope"] in ("col", "row") for head in read.all("th"))
    assert all(chart["role"] == "img" and chart["aria-label"] for chart in read.all("svg"))


def test_folded_sections_and_rows_are_details():
    read = HtmlPage(Report("title", SECTIONS).to_html())
    assert len(read.all("details")) == 3  # a member of the group, rows of the table, the last section
    assert "1 more rows" in read.text


def test_shares_have_a_bar_and_names_head_their_row():
    read = HtmlPage(section_html(SECTIONS[1]))
    assert [cell["style"] for cell in read.all("td")] == ["--share:0.500"] * 3
    assert [head["scope"] for head in read.all("th")].count("row") == 3


def test_mistakes_and_right_answers_have_their_colour():
    cells = [cell["class"] for cell in HtmlPage(section_html(SECTIONS[5])).all("td") if "class" in cell]
    assert cells == ["right", "wrong", "none", "right"]
    other = Matrix("", ["a"], ["b"], [[3]])
    assert 'class="right"' in section_html(other)


def test_a_large_matrix_is_a_picture():
    names = [str(index) for index in range(120)]
    counts = [[int(row == column) for column in range(120)] for row in range(120)]
    read = HtmlPage(section_html(Matrix("Confusion", names, names, counts)))
    (heat,) = read.all("img")
    assert heat["class"] == "heat"
    assert "120 x 120" in heat["alt"]
    assert not read.all("table")


def test_images_of_a_shot_stand_side_by_side_and_are_described():
    read = HtmlPage(section_html(SECTIONS[6]))
    assert [image["alt"] for image in read.all("img")] == [NASTY, NASTY, "Gallery", "Gallery"]
    assert "shots several" in [attributes.get("class") for attributes in read.all("div")]
    assert [line["class"] for line in read.all("span")] == ["line bad", "line soft"]


def test_a_page_has_its_own_style_last():
    text = page("title", "<p>body</p>", style="p { color: red }")
    assert text.index("p { color: red }") > text.index("max-width")
    assert HtmlPage(text).text.count("body") >= 1


def test_anchors():
    assert anchor("Confusion  matrix") == "confusion-matrix"
