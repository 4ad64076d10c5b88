"""Report sections of a detector."""

import pytest
import torch

from vitrail.report import Report
from vitrail.tasks.answer import Example
from vitrail.tasks.detect.detect_answer import BoxesAnswer, FoundBox
from vitrail.tasks.detect.detect_report import drawn, lead, per_class, precision_curves, sections

CLASSES = ("cat", "dog")
RESULTS = {
    "ap": 0.5, "ap50": 0.75, "boxes": 1200, "images": 30, "ap_of": torch.tensor([0.6, torch.nan]),
    "ap50_of": torch.tensor([0.8, torch.nan]), "boxes_of": torch.tensor([1200, 0]), "precision": torch.rand(2, 101),
    "confusion": torch.tensor([[900, 0, 300], [0, 0, 0], [40, 2, 0]]),
}  # fmt: skip


def test_the_result_in_a_sentence():
    assert lead(RESULTS) == "AP 0.500, AP50 0.750, on 1,200 boxes in 30 images"


def test_a_class_without_boxes_has_no_ap():
    rows = {row["class"]: row for row in per_class(RESULTS, CLASSES).rows}
    assert rows["cat"]["AP"] == pytest.approx(0.6)
    assert rows["dog"]["AP"] is None


def test_a_page_of_all_sections():
    found = sections(RESULTS, CLASSES)
    page = Report("detection", found).to_html()
    assert "Precision by recall" in page
    assert "no box" in page
    assert Report.from_json(Report("detection", found).to_json())


def test_no_curve_without_boxes():
    empty = RESULTS | {"ap50_of": torch.full((2,), torch.nan)}
    assert precision_curves(empty, CLASSES) is None


def test_many_classes_have_few_charts():
    many = {"ap50_of": torch.rand(20), "precision": torch.rand(20, 101)}
    charts = precision_curves(many, [f"class {index}" for index in range(20)])
    assert "12" in Report("x", (charts,)).to_html()


def example(truth: list[list[float]], *boxes: FoundBox) -> Example:
    value = torch.tensor(truth).view(-1, 7)
    return Example(
        torch.full((3, 40, 60), 90, dtype=torch.uint8), "a.png", "2 cat", BoxesAnswer(boxes), 0.5, {"boxes": value}
    )


def outlines(picture: torch.Tensor, colour: tuple[int, int, int]) -> torch.Tensor:
    return (picture == torch.tensor(colour)[:, None, None]).all(dim=0)


def test_worst_images_show_what_was_missed_and_what_is_superfluous():
    truth = [[2, 2, 20, 20, 0, 0, 324], [30, 2, 50, 20, 0, 0, 360], [30, 22, 50, 38, 1, 1, 320], [0, 0, 0, 0, -1, 0, 0]]
    found = example(truth, FoundBox("cat", 0, 0.9, (2, 2, 20, 20)), FoundBox("dog", 1, 0.8, (30, 2, 50, 20)))
    true, said = drawn(found, CLASSES)
    green, red, grey = (30, 160, 70), (225, 40, 40), (150, 150, 150)
    for picture in (true, said):
        assert outlines(picture, green)[2, 10]
        assert outlines(picture, red)[2, 40]  # missed as a cat, superfluous as a dog
    assert outlines(true, grey)[37, 40]
    page = Report("x", sections(RESULTS, CLASSES, worst=[found])).to_html()
    assert page.count("<img") == 2
    assert "50 % superfluous" in page


def test_an_image_without_boxes_is_drawn():
    true, said = drawn(example([[0, 0, 0, 0, -1, 0, 0]]), CLASSES)
    assert torch.equal(true, said)
