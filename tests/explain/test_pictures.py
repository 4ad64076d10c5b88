"""Pictures as a model takes them and as people see them."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vitrail.data.preprocess import Preprocess
from vitrail.explain.pictures import MAX_SIDE, fitted_picture, read_pictures

PREPROCESS = Preprocess(image_size=(32, 32))


def test_files_and_what_is_none(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((40, 60, 3), np.uint8)).save(tmp_path / "good.png")
    (tmp_path / "bad.jpg").write_text("<html>")
    (tmp_path / "empty").mkdir()
    names = [tmp_path / name for name in ("good.png", "bad.jpg", "none.png", "empty")]
    found, broken = read_pictures(names, PREPROCESS)
    assert [one.name for one in found] == [str(names[0])]
    assert list(broken) == [str(name) for name in names[1:]]
    assert "HTML" in broken[str(names[1])]
    assert "No such file" in broken[str(names[2])]
    assert "folder without images" in broken[str(names[3])]


def test_people_see_the_same_part_at_a_larger_scale() -> None:
    image = torch.zeros(3, 300, 400, dtype=torch.uint8)
    image[:, :, 50:350] = 200  # what is left of the middle
    found = fitted_picture(image, PREPROCESS, name="a")
    assert found.pixels.shape == (3, 32, 32)
    assert found.shown.shape == (3, 288, 288)  # nine times, as far as 300 pixels go
    assert found.shown.min() == 200
    assert (
        max(fitted_picture(torch.zeros(3, 2000, 2000, dtype=torch.uint8), PREPROCESS, name="b").shown.shape) <= MAX_SIDE
    )
    assert fitted_picture(torch.zeros(1, 9, 9, dtype=torch.uint8), PREPROCESS, name="c").shown.shape == (3, 32, 32)


def test_masks_are_cut_as_their_pictures_are(tmp_path: Path) -> None:
    (tmp_path / "masks").mkdir()
    pixels, known = np.zeros((64, 96, 3), np.uint8), np.zeros((64, 96), np.uint8)
    known[:32, 16:48] = 3  # the upper left quarter of the middle, which is what the model is given
    known[:, :8] = 255  # beside it
    Image.fromarray(pixels).save(tmp_path / "a.jpg")
    Image.fromarray(known).save(tmp_path / "masks" / "a.png")
    expected = torch.zeros(32, 32, dtype=torch.bool)
    expected[:16, :16] = True
    for masks in (tmp_path / "masks", tmp_path / "masks" / "a.png"):
        (found,), broken = read_pictures([tmp_path / "a.jpg"], PREPROCESS, masks=masks)
        assert torch.equal(found.mask, expected)
        assert not broken


def test_masks_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    masks = tmp_path / "masks"
    masks.mkdir()
    for name in ("small", "empty", "alone", "text"):
        Image.fromarray(np.zeros((40, 60, 3), np.uint8)).save(tmp_path / f"{name}.png")
    Image.fromarray(np.full((20, 30), 255, np.uint8)).save(masks / "small.png")
    Image.fromarray(np.zeros((40, 60), np.uint8)).save(masks / "empty.png")
    (masks / "text.png").write_text("<html>")
    found, broken = read_pictures(sorted(tmp_path.glob("*.png")), PREPROCESS, masks=masks)
    assert not found
    reasons = {Path(name).stem: reason for name, reason in broken.items()}
    assert "alone.png" in reasons["alone"]
    assert "shows no object" in reasons["empty"]
    assert "20 x 30" in reasons["small"]
    assert "masks/text.png" in reasons["text"]


def test_the_part_is_that_of_the_preprocessing() -> None:
    image = torch.zeros(3, 128, 128, dtype=torch.uint8)
    image[:, 32:96, 32:96] = 200
    central = Preprocess(image_size=(32, 32), resize="crop", crop=0.5)
    found = fitted_picture(image, central, name="a")
    assert found.pixels[:, 2:-2, 2:-2].min() > 190
    assert found.shown.shape == (3, 128, 128)
    assert found.shown[:, 4:-4, 4:-4].min() > 190
    padded = Preprocess(image_size=(32, 32), resize="pad")
    assert fitted_picture(torch.zeros(3, 64, 128, dtype=torch.uint8), padded, name="b").pixels[0, 0, 0] > 100
