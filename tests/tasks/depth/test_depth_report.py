"""Report sections of a depth model."""

import torch

from vitrail.report import Report
from vitrail.tasks.answer import Example
from vitrail.tasks.depth.depth_answer import DepthAnswer
from vitrail.tasks.depth.depth_metrics import NAMES
from vitrail.tasks.depth.depth_report import drawn, intervals, lead, sections


def test_a_page_of_all_sections():
    errors = torch.rand(9, len(NAMES), dtype=torch.float64)
    results = dict(zip(NAMES, errors.mean(0).tolist(), strict=True)) | {"images": 9, "errors": errors}
    assert "AbsRel" in lead(results)
    page = Report("depth", sections(results)).to_html()
    assert "Errors of images" in page
    for name, (low, high) in intervals(errors).items():
        assert low <= results[name] <= high


def test_worst_images_show_truth_answer_and_error():
    true = torch.linspace(1, 9, 64).view(8, 8)
    found = true.clone()
    found[4:] *= 2
    true[0, 0] = 0
    image = torch.full((3, 8, 8), 90, dtype=torch.uint8)
    first, second, error = drawn(Example(image, "a.png", "", DepthAnswer.of(found), 1.0, {"depth": true}))
    assert torch.equal(first[:, 1:4], second[:, 1:4])  # one scale for both
    assert (error[:, 0, 0] == 90).all()
    assert (error[0, 4:] > error[2, 4:]).all()  # warm
    assert (error[2, 1:4] > error[0, 1:4]).all()  # cold
