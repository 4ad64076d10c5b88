"""The page of pictures with their targets drawn."""

import numpy as np
import pytest
import torch
from PIL import Image
from support.annotated import depth, masks, picture, voc

from vitrail.data.audit.preview import drawn, preview
from vitrail.data.sources.opening import survey


@pytest.mark.parametrize("make", [voc, masks, depth])
def test_every_kind_is_drawn(tmp_path, make):
    splits = survey(make(tmp_path))
    picture, texts = drawn(splits.train, 0)
    assert picture.shape == (3, 30, 40)
    assert not torch.equal(picture, torch.full_like(picture, 90))
    assert len(texts) == 1
    page = preview(splits).to_html()
    assert page.count("<img") >= len(splits.train) + len(splits.val)
    assert splits.train.key(0) in page


def test_large_pictures_are_shown_smaller_and_boxes_with_them(tmp_path):
    voc(tmp_path, 6)
    Image.new("L", (1200, 900), 90).save(tmp_path / "JPEGImages" / "0.png")
    found, _ = drawn(survey(tmp_path).train, 0)
    assert found.shape == (3, 360, 480)
    assert (found[:, :12, :12] != 90).any()  # a box of about 8 x 9 pixels
    assert (found[:, 20:, 20:] == 90).all()


def test_pictures_come_from_all_splits(tmp_path):
    page = preview(survey(voc(tmp_path, 40)), count=8)
    galleries = [section for section in page.sections if section.title.startswith("Pictures of")]
    assert [len(gallery.shots) for gallery in galleries] == [4, 1, 1]


def test_a_picture_that_cannot_be_drawn_says_why(tmp_path):
    masks(tmp_path, count=6)
    splits = survey(tmp_path)
    Image.fromarray(np.zeros((3, 3), np.uint8)).save(tmp_path / "masks" / "0.png")
    (tmp_path / "images" / "1.png").write_bytes(b"junk")
    page = preview(splits).to_html()
    assert "3 x 3" in page
    assert "cannot be decoded" in page


def test_images_without_targets_are_shown_too(tmp_path):
    for number in range(4):
        picture(tmp_path / f"{number}.png")
    assert preview(survey(tmp_path)).to_html().count("<img") == 4
