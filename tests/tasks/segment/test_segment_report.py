"""Report sections of a segmenter."""

import pytest
import torch

from vitrail.report import Report
from vitrail.tasks.answer import Example
from vitrail.tasks.segment.mask_answer import MaskAnswer
from vitrail.tasks.segment.segment_report import drawn, lead, legend, per_class, sections

RESULTS = {
    "miou": 0.5, "pixel_accuracy": 0.8, "images": 30, "iou_of": torch.tensor([0.6, torch.nan]),
    "recall_of": torch.tensor([0.8, torch.nan]), "pixels_of": torch.tensor([1200, 0]),
    "confusion": torch.tensor([[900, 300], [0, 0]]),
}  # fmt: skip


def test_a_page_of_all_sections():
    assert lead(RESULTS) == "mIoU 0.500, 80.0 % of the pixels right, on 30 images"
    page = Report("segmentation", sections(RESULTS, ("sky", "road"))).to_html()
    assert "Confusion" in page
    rows = {row["class"]: row for row in per_class(RESULTS, ("sky", "road")).rows}
    assert rows["sky"]["IoU"] == pytest.approx(0.6)
    assert rows["road"]["IoU"] is None


def test_worst_images_show_truth_answer_and_wrong_pixels():
    true = torch.zeros(8, 8, dtype=torch.uint8)
    true[:, 4:], true[0, 0] = 1, 255
    answer = MaskAnswer.of(("sky", "road"), torch.zeros(8, 8))
    image = torch.full((1, 8, 8), 90, dtype=torch.uint8)
    example = Example(image, "a.png", "sky", answer, 0.5, {"mask": true})
    first, second, wrong = drawn(example)
    assert torch.equal(first[:, 1:, :4], second[:, 1:, :4])
    assert (first[:, :, 4:] != second[:, :, 4:]).any(dim=0).all()
    assert (wrong[:, :, 4:] == torch.tensor([225, 40, 40])[:, None, None]).all()
    assert (wrong[:, :, :4] == 90).all()
    page = Report("x", sections(RESULTS, ("sky", "road"), worst=[example])).to_html()
    assert page.count("<img") == 3
    assert "&lt;b&gt;" in legend(["<b>", "road"])
    assert "50 % of the pixels wrong" in page
    assert drawn(example._replace(targets={})) is None
