"""A class map as JSON with a PNG, text, a row, and a drawing; placed on the original picture."""

import base64
import io

import numpy as np
import torch
from PIL import Image

from vitrail.data.targets.drawing import class_colour
from vitrail.tasks.segment.mask_answer import MaskAnswer

CLASSES = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 2.0]])
ANSWER = MaskAnswer.of(("sky", "road", "car"), CLASSES)


def test_plain_data():
    plain = ANSWER.to_json()
    assert [row["label"] for row in plain["classes"]] == ["sky", "road", "car"]
    assert plain["classes"][0] == {"label": "sky", "index": 0, "share": 0.666667}
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(plain["mask"]))))
    assert picture.tolist() == CLASSES.tolist()
    assert ANSWER.text() == "sky 66.7 %, road 16.7 %, car 16.7 %"
    assert ANSWER.row()["label"] == "sky"
    assert [bar.label for bar in ANSWER.bars()] == ["sky", "road", "car"]
    assert ANSWER.bars()[0].colour == class_colour(0)


def test_equal_answers_are_equal():
    assert MaskAnswer.of(ANSWER.names, CLASSES) == ANSWER
    assert MaskAnswer.of(ANSWER.names, CLASSES.flip(0)) != ANSWER


def test_placed_on_the_picture():
    maps = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]])  # the picture is twice as large
    placed = ANSWER.placed(maps, (4, 6))
    assert placed.classes.tolist() == CLASSES.repeat_interleave(2, 0).repeat_interleave(2, 1).tolist()
    cut = ANSWER.placed(torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), (2, 5))  # one column was cut off at each side
    assert cut.classes[0].tolist() == [255, 0, 0, 1, 255]
    assert cut.shares()[0][1] == 4 / 6


def test_drawn_at_its_own_size():
    image = torch.zeros(3, 2, 3, dtype=torch.uint8)
    drawn = ANSWER.draw(image)
    assert drawn.shape == image.shape
    assert len({tuple(pixel) for pixel in drawn.flatten(1).T.tolist()}) == 3
    assert ANSWER.draw(torch.zeros(3, 9, 9, dtype=torch.uint8)) is None


def test_nothing_but_ignored_pixels():
    empty = MaskAnswer.of(ANSWER.names, torch.full((2, 2), 255.0))
    assert empty.text() == "no class"
    assert empty.row() == {"label": None, "share": None, "classes": []}
    assert len(empty.bars()) == 1


def test_a_drawing_for_a_file_has_the_names_of_large_classes():
    classes = torch.zeros(60, 80)
    classes[30:], classes[0, :3] = 1, 2
    answer, image = MaskAnswer.of(("sky", "road", "car"), classes), torch.zeros(3, 60, 80, dtype=torch.uint8)
    plain, named = answer.draw(image), answer.draw_named(image)
    changed = (plain != named).any(dim=0)
    assert changed[:30].any()
    assert changed[30:].any()
    for rows, label in ((slice(0, 30), 0), (slice(30, 60), 1)):
        seen = {tuple(pixel) for pixel in named[:, rows][:, changed[rows]].T.tolist()}
        assert class_colour(label) in seen
        assert class_colour(2) not in seen
    assert answer.draw_named(image[:, :10]) is None
    tiny = MaskAnswer.of(("a very long name of a class",), torch.zeros(4, 5))
    assert tiny.draw_named(torch.zeros(3, 4, 5, dtype=torch.uint8)).shape == (3, 4, 5)
