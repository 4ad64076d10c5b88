"""The report of a run: whole, escaped, small, without network; and what a real browser makes of it."""

import dataclasses
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.browser import dump_dom, needs_browser, screenshot
from support.html_page import HtmlPage

from vitrail.errors import WriteError
from vitrail.report import Facts, Figure, Gallery, Group, Line, Matrix, Metric, Picture, Report, Shot, Table, Text
from vitrail.report.charts import Bin, calibration
from vitrail.report.images import data_uri
from vitrail.training.report import Outcome, outcome_page, summary, write_report

NASTY = "<script>alert(1)</script> & “co”"
SCREENSHOTS = Path(__file__).parents[3] / "docs" / "images"  # those that the README shows


def sections(count: int = 3, *, side: int = 8, shots: int = 4):
    """Sections of every kind that a task may have."""
    names = (NASTY, *(f"class {index}" for index in range(1, count)))
    counts = (torch.randint(0, 3, (count, count)) + 20 * torch.eye(count, dtype=torch.long)).tolist()
    rows = [{"class": name, "images": 20, "recall": 0.5} for name in names]
    images = torch.randint(0, 256, (shots, 3, side, side), dtype=torch.uint8)
    return (
        Group("Confusion matrix", (Matrix("", names, names, counts), Table("Rows", {"class": ""}, rows)), 2),
        Table("Per class", {"class": "", "images": "", "recall": "share"}, rows, bars=True),
        Group(
            "Calibration", (Picture("", calibration([Bin(0.2, 0.4, 10), Bin(0.9, 0.8, 50)]), ""), Text("", NASTY)), 2
        ),
        Gallery("Worst mistakes", NASTY, [Shot((data_uri(image),), (Line(NASTY, "bad"),), NASTY) for image in images]),
    )


def outcome(**changes) -> Outcome:
    """A whole outcome of a small run."""
    whole = Outcome(
        title=f"a run {NASTY}",
        model=f"The model is {NASTY}.",
        lead="Correct on 45 of 60 images",
        split="validation",
        command=f"vitrail train photos/ --title '{NASTY}'",
        recipe={"model": "vit_tiny_patch16", "optimiser": {"betas": (0.9, 0.999)}, "note": NASTY, "ema": None},
        environment={"torch": "2.13", "seed": 0},
        notes=(f"Chose {NASTY}.",),
        history=[
            {"epoch": 1, "train/loss": 2.0, "val/loss": 1.9, "val/accuracy": 0.5, "lr": 1e-3, "seconds": 61.0},
            {"epoch": 2, "train/loss": 1.0, "val/loss": None, "val/accuracy": None, "lr": 5e-4, "seconds": 59.0},
            {"epoch": 3, "train/loss": 0.5, "val/loss": 1.2, "val/accuracy": 0.75, "lr": 1e-4, "seconds": 60.0},
        ],
        metrics={"accuracy": Metric("accuracy", "share")},
        best_metric="accuracy",
        figures={"accuracy": Figure(0.75, "accuracy", "share", "", (0.628, 0.842)), "nll": Figure(0.8, NASTY)},
        sections=sections(),
        cost=Report("cost", (Facts("Totals", {"MACs": 10}), Table("Layers", {"layer": "path"}, [{"layer": "a"}]))),
        skipped=((f"{NASTY}.jpg", "the file is empty"),),
    )
    return dataclasses.replace(whole, **changes)


def test_page_is_whole_escaped_and_without_network():
    text = outcome_page(outcome())
    page = HtmlPage(text)
    assert NASTY not in text
    assert f"a run {NASTY}" in page.text
    assert all(image["src"].startswith("data:image/") and image["alt"] for image in page.all("img"))
    anchors = [attributes["id"] for attributes in page.all("section")]
    assert [link["href"].removeprefix("#") for link in page.all("a")] == anchors
    for words in (
        "75.0 %95 % interval: 62.8 to 84.2 %",
        "Correct on 45 of 60 images (validation split, which also chose the best epoch), after 3 epochs in 3 min 0 s.",
        "the file is empty",
        "best 75 % at epoch 3",
        "betas: [0.9, 0.999]",
        f"--title '{NASTY}'",
        f"The model is {NASTY}.",
    ):
        assert words in page.text


def test_a_test_result_stands_beside_what_chose_the_best_epoch():
    assert "validation accuracy" not in outcome_page(outcome())
    text = HtmlPage(outcome_page(outcome(split="test", best_epoch=1))).text
    assert "validation accuracy50.0 %chose the best epoch" in text
    assert "(test split)" in text


def test_sections_come_in_order():
    page = HtmlPage(outcome_page(outcome()))
    assert [attributes["id"] for attributes in page.all("section")] == [
        "notes",
        "training-curves",
        "confusion-matrix",
        "per-class",
        "calibration",
        "worst-mistakes",
        "cost",
        "reproduce",
    ]


def test_every_table_and_chart_is_accessible():
    page = HtmlPage(outcome_page(outcome()))
    assert all(head["scope"] in ("col", "row") for head in page.all("th"))
    assert all(chart["role"] == "img" and chart["aria-label"] for chart in page.all("svg"))
    assert len(page.all("svg")) == 4  # loss, accuracy, learning rate, calibration


def test_an_empty_outcome_is_still_a_page():
    page = HtmlPage(outcome_page(Outcome(title="empty")))
    assert "empty" in page.text
    assert not page.all("section")
    assert "empty" in str(summary(Outcome(title="empty")))


def test_summary_for_terminal_and_json():
    report = summary(outcome())
    assert json.loads(report.to_json())["sections"][0]["values"]["accuracy"] == 0.75
    assert "75.0 %" in str(report)
    assert Report.from_json(report.to_json()).to_json() == report.to_json()
    assert [section.title for section in report.sections] == [
        "Result",
        "Confusion matrix",
        "Per class",
        "Calibration",
        "Epochs",
        "Images that could not be read",
        "Notes",
        "Command",
    ]


def test_photos_keep_the_file_small(tmp_path):
    path = write_report(outcome(sections=sections(10, side=640, shots=40)), tmp_path / "new" / "report.html")
    assert path == tmp_path / "new" / "report.html"
    assert path.stat().st_size < 3_000_000  # noise is the worst that JPEG can get


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(WriteError, match="file/report"):
        write_report(outcome(), tmp_path / "file" / "report.html")
    (tmp_path / "report.html").mkdir()
    with pytest.raises(WriteError, match="folder"):
        write_report(outcome(), tmp_path / "report.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "report.html"]


PROBE = "<script>document.title = [innerWidth, document.documentElement.scrollWidth].join(' ')</script>"


@needs_browser
@pytest.mark.parametrize("width", [1200, 500])
def test_a_browser_shows_all_of_it(tmp_path, width):
    path = write_report(outcome(sections=sections(12)), tmp_path / "report.html")
    path.write_text(path.read_text(encoding="utf-8").replace("</body>", f"{PROBE}</body>"), encoding="utf-8")
    seen = dump_dom(path, width=width)
    inner, needed = map(int, re.search(r"<title>(\d+) (\d+)</title>", seen).groups())
    assert needed <= inner == width  # nothing sticks out at the side
    assert seen.count("<svg") == 4
    assert "Reproduce" in seen


@needs_browser
def test_light_and_dark_in_a_browser(tmp_path):
    path = write_report(outcome(), tmp_path / "report.html")
    light, dark = (
        np.asarray(
            Image.open(screenshot(path, tmp_path / f"{scheme}.png", width=800, height=600, scheme=scheme)).convert("L")
        )
        for scheme in ("light", "dark")
    )
    assert light[0, 0] > 240
    assert dark[0, 0] < 50
    assert light.min() < 80  # there is ink on it
    assert dark.max() > 200


@needs_browser
@pytest.mark.skipif("VITRAIL_SCREENSHOTS" not in os.environ, reason="make screenshots names the report of a real run")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_screenshots_of_a_real_run(tmp_path, scheme):
    page = Path(os.environ["VITRAIL_SCREENSHOTS"]).resolve()
    assert page.is_file(), f"{page} is not a report; train first"
    shot = Image.open(screenshot(page, tmp_path / "shot.png", width=1100, height=1110, scheme=scheme))
    file = SCREENSHOTS / f"report-{scheme}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    shot.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(file, optimize=True)
    assert file.stat().st_size < 300_000


def test_screenshots_of_the_readme_are_there_and_small():
    for scheme, bright in (("light", True), ("dark", False)):
        file = SCREENSHOTS / f"report-{scheme}.png"
        assert file.stat().st_size < 300_000
        assert (np.asarray(Image.open(file).convert("L")).mean() > 128) == bright
