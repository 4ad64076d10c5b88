"""Reconstructions in a report: the picture, what was visible, what was rebuilt."""

import base64
from io import BytesIO

import numpy as np
import torch
from PIL import Image

from vitrail.tasks.mae import mae_report


def pixels(uri: str) -> np.ndarray:
    return np.asarray(Image.open(BytesIO(base64.b64decode(uri.partition(",")[2]))))


def test_three_images_each():
    stored = torch.randint(0, 256, (2, 1, 4, 4), dtype=torch.uint8)
    images = (stored / 255 - 0.3) / 0.2
    rebuilt = images.clone()
    rebuilt[:, :, 2:] = 9.0  # brighter than white
    hidden = torch.tensor([[False, False], [True, True]]).expand(2, 2, 2)
    gallery = mae_report.rebuilt_gallery(images, rebuilt, hidden, ["a.png", "b.png"], mean=(0.3,), std=(0.2,))
    assert [shot.lines[0].text for shot in gallery.shots] == ["a.png", "b.png"]
    for shot, image in zip(gallery.shots, stored, strict=True):
        whole, seen, made = map(pixels, shot.images)
        assert np.array_equal(whole, image[0].numpy())
        assert np.array_equal(seen[:2], whole[:2])
        assert np.array_equal(made[:2], whole[:2])
        assert set(seen[2:].flatten()) == {128}
        assert set(made[2:].flatten()) == {255}


def test_the_lead():
    text = mae_report.lead({"explained": 0.625, "images": 1200})
    assert "62.5 %" in text
    assert "1,200 images" in text
