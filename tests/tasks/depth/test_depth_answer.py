"""A depth map as JSON with a PNG of 16 bits, text, a row and a drawing; placed on the picture."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.tasks.depth.depth_answer import DepthAnswer

DEPTH = torch.tensor([[1.0, 2.0, 4.0], [8.0, 2.0, 2.0]])
ANSWER = DepthAnswer.of(DEPTH)


def test_plain_data():
    plain = ANSWER.to_json()
    assert (plain["nearest"], plain["median"], plain["farthest"]) == (1, 2, 8)
    levels = np.asarray(Image.open(io.BytesIO(base64.b64decode(plain["map"]))))
    assert levels / 65535 * plain["farthest"] == pytest.approx(DEPTH.numpy(), abs=1e-3)
    assert ANSWER.text() == "1 to 8, median 2"
    assert ANSWER.row() == {"nearest": 1, "median": 2, "farthest": 8}
    assert [bar.share for bar in ANSWER.bars()] == [0.125, 0.25, 1.0]
    assert DepthAnswer.of(DEPTH) == ANSWER


def test_placed_and_drawn():
    placed = ANSWER.placed(torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]]), (4, 6))
    assert placed.depth.tolist() == DEPTH.repeat_interleave(2, 0).repeat_interleave(2, 1).tolist()
    image = torch.zeros(3, 2, 3, dtype=torch.uint8)
    assert ANSWER.draw(image).shape == image.shape
    assert placed.draw(image) is None


def test_nothing_known():
    empty = DepthAnswer.of(torch.zeros(2, 2))
    assert empty.range == (0, 0, 0)
    assert empty.to_json()["farthest"] == 0
