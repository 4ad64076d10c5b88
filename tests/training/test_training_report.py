"""The report of a run: whole, escaped, small, without network; and what a real browser makes of it."""

import base64
import dataclasses
import json
import os
import re
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from browser import dump_dom, screenshot
from PIL import Image
from registered import tiny

import vitrail
from vitrail.charts import Bin
from vitrail.errors import TrainingError
from vitrail.report import Facts, Report, Table
from vitrail.training.evidence import Evidence, Picture, Rebuilt, View, Views, interval
from vitrail.training.training_report import Outcome, name_model, outcome_page, summary, write_report
from vitrail.training.training_report_parts import duration
from vitrail.training.training_report_pictures import data_uri, lit

NASTY = "<script>alert(1)</script> & “co”"
SCREENSHOTS = Path(__file__).parents[2] / "docs" / "images"  # those that the README shows
VOID = {"meta", "img", "br"}


def evidence(count: int = 3, *, side: int = 8, mistakes: int = 4) -> Evidence:
    """Evidence of `count` classes with random pictures."""
    names = (NASTY, *(f"class {index}" for index in range(1, count)))
    confusion = torch.randint(0, 3, (count, count)) + 20 * torch.eye(count, dtype=torch.long)
    pictures = tuple(
        Picture(
            torch.randint(0, 256, (3, side, side), dtype=torch.uint8), names[0], names[1], 0.9, f"{NASTY}/{index}.png"
        )
        for index in range(mistakes)
    )
    rows = tuple(
        {"class": name, "images": 20, "recall": index / count, "precision": None, "F1": index / count}
        for index, name in enumerate(names)
    )
    return Evidence(
        classes=names,
        images=60,
        metrics={"accuracy": 0.75, "nll": 0.8},
        confusion=confusion,
        per_class=rows,
        calibration=(Bin(0.2, 0.4, 10), Bin(0.9, 0.8, 50)),
        mistakes=pictures,
        examples=pictures[:2],
    )


def outcome(**changes) -> Outcome:
    """A whole outcome of a small run."""
    seen = changes.pop("evidence", None) or evidence()
    whole = Outcome(
        title=f"a run {NASTY}",
        command=f"vitrail train photos/ --title '{NASTY}'",
        recipe={"model": "vit_tiny_patch16", "optimiser": {"betas": (0.9, 0.999)}, "note": NASTY, "ema": None},
        environment={"torch": "2.13", "seed": 0},
        notes=(f"Chose {NASTY}.",),
        history=[
            {"epoch": 1, "train/loss": 2.0, "val/loss": 1.9, "val/accuracy": 0.5, "lr": 1e-3, "seconds": 61.0},
            {"epoch": 2, "train/loss": 1.0, "val/loss": None, "val/accuracy": None, "lr": 5e-4, "seconds": 59.0},
            {"epoch": 3, "train/loss": 0.5, "val/loss": 1.2, "val/accuracy": 0.75, "lr": 1e-4, "seconds": 60.0},
        ],
        evidence=seen,
        views=Views(tuple(View(one, torch.rand(2, 2)) for one in seen.examples), f"light {NASTY}", f"It is {NASTY}."),
        cost=Report("cost", (Facts("Totals", {"MACs": 10}), Table("Layers", {"layer": "path"}, [{"layer": "a"}]))),
        skipped=((f"{NASTY}.jpg", "the file is empty"),),
    )
    return dataclasses.replace(whole, **changes)


class Page(HTMLParser):
    """Collects tags and text, and checks that tags close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of every tag of a name."""
        return [attributes for name, attributes in self.tags if name == tag]


def test_page_is_whole_escaped_and_without_network():
    text = outcome_page(outcome())
    page = Page(text)
    assert NASTY not in text
    assert f"a run {NASTY}" in page.text
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert not re.search(r"https?:|//[a-z]|url\(|@import", re.sub(r"base64,[^\"]+", "", text))
    assert all(image["src"].startswith("data:image/") and image["alt"] for image in page.all("img"))
    anchors = {attributes["id"] for attributes in page.all("section")}
    assert {link["href"].removeprefix("#") for link in page.all("a")} == anchors
    for words in (
        "75.0 %",
        "62.8 to 84.2 %",
        "45 of 60",
        "but chose its best epoch by, after",
        "3 min 0 s",
        "the file is empty",
        "best 75 % at epoch 3",
    ):
        assert words in page.text
    assert "betas: [0.9, 0.999]" in page.text
    assert f"--title '{NASTY}'" in page.text


def test_every_table_and_chart_is_accessible():
    page = Page(outcome_page(outcome()))
    assert all(head["scope"] in ("col", "row") for head in page.all("th"))
    assert all(chart["role"] == "img" and chart["aria-label"] for chart in page.all("svg"))
    assert len(page.all("svg")) == 4  # loss, accuracy, learning rate, calibration


def test_confusions_with_numbers_or_as_a_picture():
    few, many = (Page(outcome_page(outcome(evidence=evidence(count)))) for count in (20, 120))
    assert any(table.get("class") == "matrix" for table in few.all("table"))
    assert not any(table.get("class") == "matrix" for table in many.all("table"))
    (heat,) = (image for image in many.all("img") if image.get("class") == "heat")
    assert decoded(heat["src"]).size == (120, 120)
    assert "The other 100 classes" in many.text


def test_the_weakest_class_stands_first():
    text = Page(outcome_page(outcome())).text
    table = text[text.index("Class by class", text.index("What it confuses", 2000)) :]
    assert table.index(NASTY) < table.index("class 1") < table.index("class 2")


def test_an_outcome_of_nothing_is_a_page_still():
    page = Page(outcome_page(Outcome(title="empty")))
    assert "empty" in page.text
    assert not page.all("section")
    assert "empty" in str(summary(Outcome(title="empty")))


def test_no_attention_has_a_reason():
    text = outcome_page(outcome(views=None, no_views="no patch changes anything"))
    assert "<p>No patch changes anything.</p>" in text


def test_several_labels_have_no_matrix():
    found = dataclasses.replace(evidence(), confusion=None, metrics={"exact": 0.5, "ap": 0.75})
    page = Page(outcome_page(outcome(evidence=found)))
    assert "gives a label 78.3 %, and 73.3 % of images have it: too sure" in page.text
    assert "What it confuses" not in page.text
    assert "Worst mistakes" in page.text


def test_figures_and_intervals_are_of_one_pass():
    both = outcome(metrics={"accuracy": 0.5, "val/accuracy": 0.25, "images": 9, "best_f1": 0.123})
    assert both.figures["accuracy"] == 0.75
    text = Page(outcome_page(both)).text
    low, high = interval(0.75, 60)
    assert f"75.0 %95 % interval: {100 * low:.1f} to {100 * high:.1f} %" in text
    assert "validation accuracy25.0 %" in text
    assert "12.3" not in text  # thresholds that fit what they are measured on are no result


def test_the_epoch_that_the_run_chose_is_ringed():
    history = [{"epoch": epoch, "val/accuracy": value} for epoch, value in ((1, 0.9), (2, 0.5), (3, 0.5))]
    text = outcome_page(outcome(history=history, best_epoch=3))
    assert "best 50 % at epoch 3" in text
    assert "Epoch 1 was higher, 90 %, but epochs of the warm-up are not chosen from." in text
    ring, end = (re.search(rf'class="{cls}" cx="([\d.]+)" cy="([\d.]+)"', text) for cls in ("mark a", "dot a"))
    assert ring is not None
    assert end is not None
    assert float(ring[1]) > float(end[1])  # the first dot stands at epoch 1
    plain = outcome_page(outcome(history=history[1:], best_epoch=3))
    assert "best 50 % at epoch 3" in plain
    assert "warm-up" not in plain


def test_curves_before_thresholds_are_chosen_say_so():
    history = [
        {"epoch": epoch, "val/ap": 0.6, "val/f1": 0.75, "val/exact": 1.0, "val/best_f1": 0.9} for epoch in (1, 2)
    ]
    text = outcome_page(outcome(history=history, best_metric="ap", metrics={"f1": 0.85}))
    for title in ("F1 at 0.5", "Exact match at 0.5", "F1 at the best thresholds"):
        assert f"<b>{title}</b>" in text
    assert "at the thresholds, mean of the labels" in text
    assert not re.search(r">1[1-9]\d %<", text)  # no axis of a share passes 100 %


def test_a_model_is_called_by_its_size_where_options_changed_it():
    def called(**options):
        return name_model("vit_tiny_patch16", options, tiny(num_classes=5, **options))

    with_more = {"dim": 32, "depth": 1, "num_heads": 2, "patch": {"kind": "conv", "halvings": 3}, "class_token": False}
    title, told = called(**with_more, pool="mean")
    assert re.fullmatch(r"ViT of [\d.]+ [kM] parameters", title)
    assert told == (
        "The model is vit_tiny_patch16 with dim 32, depth 1, num_heads 2, patch conv (halvings 3), class_token no, "
        "pool mean."
    )
    assert name_model("vit_tiny_patch16", {"image_size": 32}, tiny())[0] == "vit_tiny_patch16"
    page = Page(outcome_page(outcome(model=told)))
    assert told in page.text


def test_options_that_leave_the_size_leave_the_name():
    model = vitrail.create("vit_tiny_patch16", image_size=32, num_classes=3, drop_path=0.1)
    assert name_model("vit_tiny_patch16", {"drop_path": 0.1}, model) == ("vit_tiny_patch16", "")


def test_another_metric_can_be_the_best():
    history = [{"epoch": 1, "val/ap": 0.3}, {"epoch": 2, "val/ap": 0.2}]
    assert "best 30 % at epoch 1" in outcome_page(outcome(history=history, best_metric="ap"))


def test_training_loss_stands_beside_what_validation_has():
    history = [{"epoch": epoch, "train/loss": 2.0, "val/nll": 1.9, "val/ece": 0.1, "val/images": 9} for epoch in (1, 2)]
    page = Page(outcome_page(outcome(history=history)))
    told = [chart["aria-label"] for chart in page.all("svg")]
    assert told[0] == "loss by epoch: training from 2 to 2, validation NLL from 1.9 to 1.9"
    assert told[1] == "ECE by epoch: validation from 10 % to 10 %"
    assert len(told) == 3  # and calibration


def test_summary_for_terminal_and_json():
    report = summary(outcome())
    assert json.loads(report.to_json())["sections"][0]["values"]["accuracy"] == 0.75
    assert "75.0 %" in str(report)
    assert Report.from_json(report.to_json()).to_json() == report.to_json()
    assert [section.title for section in report.sections] == [
        "Result",
        "Classes",
        "Confusions",
        "Epochs",
        "Images that could not be read",
        "What was chosen",
        "Command",
    ]


def test_photos_keep_the_file_small(tmp_path):
    large = evidence(10, side=640, mistakes=24)
    views = Views(tuple(View(picture, torch.rand(14, 14)) for picture in large.mistakes[:8]), "light", "It is light.")
    path = write_report(outcome(evidence=large, views=views), tmp_path / "new" / "report.html")
    assert path == tmp_path / "new" / "report.html"
    assert path.stat().st_size < 3_000_000  # noise is the worst that JPEG can get


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TrainingError, match=r"cannot be written to .*file/report.html: .*give it another place"):
        write_report(outcome(), tmp_path / "file" / "report.html")
    (tmp_path / "report.html").mkdir()
    with pytest.raises(TrainingError, match="cannot be written"):
        write_report(outcome(), tmp_path / "report.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "report.html"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (3599.7, "1 h 0 min"), (12_000, "3 h 20 min")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def decoded(uri: str) -> Image.Image:
    """The picture in a data URI."""
    return Image.open(BytesIO(base64.b64decode(uri.partition(",")[2])))


@pytest.mark.parametrize("channels", [1, 3])
def test_tiny_pictures_keep_every_pixel(channels):
    image = torch.randint(0, 256, (channels, 5, 7), dtype=torch.uint8)
    picture = np.asarray(decoded(data_uri(image)))
    assert np.array_equal(picture.reshape(5, 7, channels), image.permute(1, 2, 0).numpy())


def test_photos_are_shrunk_to_scale():
    uri = data_uri(torch.zeros(3, 300, 600, dtype=torch.uint8))
    assert uri.startswith("data:image/jpeg")
    assert decoded(uri).size == (192, 96)


def test_light_falls_where_the_attention_is():
    attention = torch.zeros(4, 4)
    attention[0, 3] = 0.2
    shown = lit(torch.full((3, 32, 32), 100, dtype=torch.uint8), attention).float()
    assert shown.shape == (3, 192, 192)
    assert shown[:, 24, 168].mean() > 2 * shown[:, 168, 24].mean()
    assert lit(torch.zeros(1, 28, 28, dtype=torch.uint8), torch.full((7, 7), 0.02)).shape == (3, 196, 196)


PROBE = "<script>document.title = [innerWidth, document.documentElement.scrollWidth].join(' ')</script>"


@pytest.mark.parametrize("width", [1200, 500])
def test_a_browser_shows_all_of_it(tmp_path, width):
    path = write_report(outcome(evidence=evidence(12)), tmp_path / "report.html")
    path.write_text(path.read_text(encoding="utf-8").replace("</body>", f"{PROBE}</body>"), encoding="utf-8")
    seen = dump_dom(path, width=width)
    inner, needed = map(int, re.search(r"<title>(\d+) (\d+)</title>", seen).groups())
    assert needed <= inner == width  # nothing sticks out at the side
    assert seen.count("<svg") == 4
    assert "Run it again" in seen


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


def test_what_a_task_rebuilds_is_shown_in_threes():
    image = torch.randint(0, 256, (3, 8, 8), dtype=torch.uint8)
    page = Page(outcome_page(Outcome(title="a run", rebuilt=[Rebuilt(image, image, image, NASTY)] * 2)))
    assert "What it rebuilds" in page.text
    assert len(page.all("img")) == 6
    assert [attributes["class"] for attributes in page.all("figure")] == ["triple", "triple"]
    assert NASTY in page.text


@pytest.mark.skipif("VITRAIL_SCREENSHOTS" not in os.environ, reason="make screenshots names the report of a real run")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_screenshots_of_a_real_run(tmp_path, scheme):
    page = Path(os.environ["VITRAIL_SCREENSHOTS"]).resolve()
    assert page.is_file(), f"{page} is no report; train first"
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
