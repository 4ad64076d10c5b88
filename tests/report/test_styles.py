"""Style sheets: all there, none from the network."""

from importlib import resources

import pytest

from vitrail.report.styles import css


@pytest.mark.parametrize("package", ["vitrail.report", "vitrail.training.report"])
def test_style_sheets_are_whole_and_load_nothing(package):
    sheets = [file.name for file in (resources.files(package) / "templates").iterdir() if file.name.endswith(".css")]
    assert sheets
    for sheet in sheets:
        text = css(sheet.removesuffix(".css"), package)
        assert text.count("{") == text.count("}") > 0
        assert "url(" not in text
        assert "@import" not in text
