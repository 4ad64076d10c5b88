"""Pictures as a model takes them and as people see them."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

import vitrail
from vitrail.explain.pictures import LARGEST, picture, read_pictures

CONFIG = vitrail.create("vit_tiny_patch16", dim=16, depth=1, num_heads=1, image_size=32, num_classes=3).config


def test_files_and_what_is_none(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((40, 60, 3), np.uint8)).save(tmp_path / "good.png")
    (tmp_path / "bad.jpg").write_text("<html>")
    (tmp_path / "empty").mkdir()
    names = [tmp_path / name for name in ("good.png", "bad.jpg", "none.png", "empty")]
    found, broken = read_pictures(names, CONFIG)
    assert [one.name for one in found] == [str(names[0])]
    assert list(broken) == [str(name) for name in names[1:]]
    assert "HTML" in broken[str(names[1])]
    assert "No such file" in broken[str(names[2])]
    assert "folder without images" in broken[str(names[3])]


def test_people_see_the_same_part_at_a_larger_scale() -> None:
    image = torch.zeros(3, 300, 400, dtype=torch.uint8)
    image[:, :, 50:350] = 200  # what is left of the middle
    found = picture(image, CONFIG, name="a")
    assert found.pixels.shape == (3, 32, 32)
    assert found.shown.shape == (3, 288, 288)  # nine times, as far as 300 pixels go
    assert found.shown.min() == 200
    assert max(picture(torch.zeros(3, 2000, 2000, dtype=torch.uint8), CONFIG, name="b").shown.shape) <= LARGEST
    assert picture(torch.zeros(1, 9, 9, dtype=torch.uint8), CONFIG, name="c").shown.shape == (3, 32, 32)
