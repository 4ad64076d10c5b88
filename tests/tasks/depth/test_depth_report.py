"""Report sections of a depth model."""

import torch

from vitrail.report import Report
from vitrail.tasks.depth.depth_metrics import NAMES
from vitrail.tasks.depth.depth_report import intervals, lead, sections


def test_a_page_of_all_sections():
    errors = torch.rand(9, len(NAMES), dtype=torch.float64)
    results = dict(zip(NAMES, errors.mean(0).tolist(), strict=True)) | {"images": 9, "errors": errors}
    assert "AbsRel" in lead(results)
    page = Report("depth", sections(results)).to_html()
    assert "Errors of images" in page
    for name, (low, high) in intervals(errors).items():
        assert low <= results[name] <= high
