"""Opened folders of Hugging Face's read pictures and answer as its processors and models do."""

from pathlib import Path

import pytest
import torch
from support.peers import transformers

from parity.heads import HeadCase
from parity.processors import (
    CASES,
    ProcessorCase,
    answer_errors,
    as_tensor,
    at_usual_sizes,
    grey_levels,
    padded_cases,
    padded_errors,
    photographs,
    write,
)
from vitrail.runs.trained import open_model

LIMITS = {"boxes": 0.01, "pixels": 0.001, "depth": 1e-4}  # pixels of the picture, share of pixels, relative

needs_photographs = pytest.mark.skipif(not photographs(), reason="scikit-learn has the photographs: not installed")


@needs_photographs
@pytest.mark.filterwarnings("ignore:positions resampled")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_same_pixels_and_answers(case: ProcessorCase, tmp_path: Path) -> None:
    transformers.logging.disable_progress_bar()
    processor, model = write(case, tmp_path)
    opened = open_model(tmp_path)
    assert max(grey_levels(processor, opened, photo) for photo in photographs().values()) <= 1.001
    errors = answer_errors(case, processor, model, opened)
    assert errors
    assert all(error <= LIMITS[name] for name, error in errors.items()), errors


@needs_photographs
@pytest.mark.filterwarnings("ignore:positions resampled")
@pytest.mark.parametrize("case", at_usual_sizes(), ids=lambda case: case.name)
def test_same_pixels_at_usual_sizes(case: ProcessorCase, tmp_path: Path) -> None:
    processor, _ = write(case, tmp_path)
    assert grey_levels(processor, open_model(tmp_path), photographs()["flower"]) <= 1.001


@pytest.mark.parametrize("case", padded_cases(), ids=lambda case: case.name)
def test_padding_is_told_from_the_picture(case: HeadCase, tmp_path: Path) -> None:
    transformers.logging.disable_progress_bar()
    errors = padded_errors(case, tmp_path)
    assert max(errors.values()) < 1e-5, errors


@needs_photographs
def test_a_padded_batch_of_photographs(tmp_path: Path) -> None:
    case = CASES[0]
    processor, model = write(case, tmp_path)
    photos = [photographs()[name] for name in ("china", "upright")]
    opened = open_model(tmp_path)
    assert opened.pictures is not None
    ours = opened.pictures.outputs([as_tensor(photo) for photo in photos], pad=True)
    with torch.no_grad():
        found = model(**processor(photos, return_tensors="pt"))
    sizes = [(photo.height, photo.width) for photo in photos]
    for mine, theirs in zip(ours, processor.post_process_object_detection(found, 0.0, sizes), strict=True):
        torch.testing.assert_close(mine["scores"][0], theirs["scores"].sort(descending=True).values)
