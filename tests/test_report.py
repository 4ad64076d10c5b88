"""Reports: what people see, what machines read, and that neither loses anything."""

import json
from html.parser import HTMLParser

import pytest
from rich.console import Console

from vitrail.errors import ConfigError
from vitrail.report import Facts, Picture, Report, Table, Text, show

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


class Page(HTMLParser):
    """Collects tags, attributes and text, and checks that tags close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


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


def test_text_fits_and_indents():
    lines = str(REPORT).splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0] == "a <title> & more"
    assert any(line.split() == ["MACs", "365", "M"] for line in lines)
    assert "[bold]vit[/bold]" in str(REPORT)  # no markup in values
    assert any(line.startswith("   mlp ") for line in lines)
    assert any(line.startswith(" head ") for line in lines)


def test_prints_to_any_console():
    console = Console(width=60, color_system=None)
    with console.capture() as captured:
        console.print(REPORT)
    assert max(map(len, captured.get().splitlines())) <= 60


def test_no_number_is_cut_off_in_a_narrow_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    REPORT.print()
    told = capsys.readouterr().out
    assert all(text in told for text in ("5,338,368", "1.5 KiB", "12.5 %"))


def test_print_writes_to_the_terminal(capsys):
    REPORT.print()
    assert "5,338,368" in capsys.readouterr().out


def test_json_comes_back_with_every_digit(tmp_path):
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
    page = Page(text)
    assert "http" not in text
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not {"src", "href"} & {name for name, _ in page.attributes}
    assert "a <script>alert(1)</script> & a sentence" in page.text  # escaped: text, not a tag
    assert "365 M" in page.text
    assert page.tags.count("tr") == 4


def test_sections_by_title():
    assert REPORT["Notes"].text.startswith("a <script>")
    with pytest.raises(ConfigError, match="did you mean 'Layers'"):
        REPORT["Layer"]


def test_unknown_section_kind_is_refused():
    with pytest.raises(ConfigError, match="did you mean 'table'"):
        Report.from_json('{"title": "t", "sections": [{"kind": "tables", "title": "x"}]}')


SVG = '<svg class="chart" role="img" aria-label="a" viewBox="0 0 2 1">\n<text>a &lt; b</text>\n</svg>'
PNG = "data:image/png;base64,iVBORw0KGgo="


@pytest.mark.parametrize(
    ("source", "suffix", "shown"), [(SVG, ".svg", SVG), (PNG, ".png", f'<img src="{PNG}" alt="">')]
)
def test_a_picture_is_drawn_told_and_saved(source, suffix, shown, tmp_path):
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
    with pytest.raises(ConfigError, match=f"must end in {suffix}"):
        picture.save(tmp_path / "maps.gif")


def test_a_page_without_pictures_has_no_style_for_them():
    assert ".chart" not in REPORT.to_html()
