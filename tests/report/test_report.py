"""Reports: what people see, what machines read, and that neither loses anything."""

import json

import pytest
from support.html_page import HtmlPage

from vitrail.errors import ConfigError
from vitrail.report import Facts, Group, Matrix, Picture, Report, Table, Text

REPORT = Report(
    "a <title> & more",
    (
        Facts("Totals", {"MACs": 365_107_584, "model": "[bold]vit[/bold]", "fused": True}, {"MACs": "si"}),
        Table(
            "Layers",
            {"layer": "path", "parameters": "", "kept": "bytes", "part": "share"},
            (
                {"layer": "blocks.0-11", "parameters": 5_338_368, "kept": 3 * 2**20, "part": 0.5},
                {"layer": "blocks.0-11.mlp", "parameters": 3_550_464, "kept": 1536, "part": None},
                {"layer": "head", "parameters": 1_930, "kept": 0, "part": 0.125},
            ),
        ),
        Text("Notes", "a <script>alert(1)</script> & a sentence"),
    ),
)


def test_text_fits_and_indents():
    lines = str(REPORT).splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0] == "a <title> & more"
    assert any(line.split() == ["MACs", "365", "M"] for line in lines)
    assert "[bold]vit[/bold]" in str(REPORT)  # no markup in values
    assert any(line.startswith("   mlp ") for line in lines)
    assert any(line.startswith(" head ") for line in lines)


def test_print_writes_to_the_terminal(capsys):
    REPORT.print()
    assert "5,338,368" in capsys.readouterr().out


def test_json_keeps_every_digit(tmp_path):
    text = REPORT.to_json(tmp_path / "report.json")
    assert (tmp_path / "report.json").read_text(encoding="utf-8") == text
    assert json.loads(text)["sections"][0]["values"]["MACs"] == 365_107_584
    again = Report.from_json(text)
    assert again.to_json() == text
    assert str(again) == str(REPORT)
    assert again["Layers"].rows[1]["kept"] == 1536


def test_html_is_one_valid_page_without_network(tmp_path):
    text = REPORT.to_html(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == text
    page = HtmlPage(text)
    assert "a <script>alert(1)</script> & a sentence" in page.text  # escaped: text, not a tag
    assert "365 M" in page.text
    assert len(page.all("tr")) == 4


def test_a_name_of_other_bytes_than_utf_8_is_written_with_escapes(tmp_path):
    Report("photos", (Table("Broken", {"path": ""}, ({"path": "a\udcff.png"},)),)).to_html(tmp_path / "a.html")
    assert r"a\udcff.png" in (tmp_path / "a.html").read_text()


def test_sections_by_title():
    assert REPORT["Notes"].text.startswith("a <script>")
    with pytest.raises(ConfigError, match="'Layers'"):
        REPORT["Layer"]


SVG = '<svg class="chart" role="img" aria-label="a" viewBox="0 0 2 1">\n<text>a &lt; b</text>\n</svg>'
PNG = "data:image/png;base64,iVBORw0KGgo="


@pytest.mark.parametrize(
    ("source", "suffix", "shown"), [(SVG, ".svg", SVG), (PNG, ".png", f'<img src="{PNG}" alt="">')]
)
def test_a_picture_is_drawn_described_and_saved(source, suffix, shown, tmp_path):
    picture = Picture("Maps", source, "what is on <it>")
    report = Report("seen", (picture,))
    assert Report.from_json(report.to_json()) == report
    assert "what is on <it>" in str(report)
    assert "svg" not in str(report)
    page = report.to_html()
    assert shown in page
    assert "what is on &lt;it&gt;" in page
    assert ".chart text" in page
    picture.save(tmp_path / f"maps{suffix}")
    stored = (tmp_path / f"maps{suffix}").read_bytes()
    assert stored.startswith(b"<?xml" if suffix == ".svg" else b"\x89PNG")
    with pytest.raises(ConfigError, match=f"{suffix}"):
        picture.save(tmp_path / "maps.gif")


def test_a_page_without_pictures_has_no_style_for_them():
    assert ".chart" not in REPORT.to_html()


def test_sections_of_a_group_are_found_by_title():
    report = Report("title", (Group("Both", (Text("", "first"), Text("Second", "here"))),))
    assert report["Second"].text == "here"
    assert Report.from_json(report.to_json()) == report


def test_a_row_of_numbers_is_a_line_of_json():
    text = Report("title", (Matrix("M", ["a", "b"], ["a", "b"], [[1, 2], [30, 4]]), Text("T", "[\n1\n]"))).to_json()
    assert "[30, 4]" in text
    assert json.loads(text)["sections"][1]["text"] == "[\n1\n]"
