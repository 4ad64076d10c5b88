"""Report sections of a segmenter."""

import pytest
import torch

from vitrail.report import Report
from vitrail.tasks.segment.segment_report import lead, per_class, sections

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
