"""Boxes as JSON, text, a row, bars and a drawing; placed on the original picture."""

import torch

from vitrail.tasks.detect.detect_answer import BoxesAnswer, FoundBox

ANSWER = BoxesAnswer((
    FoundBox("cat", 0, 0.91, (10.0, 5.0, 20.0, 15.0)),
    FoundBox("dog", 1, 0.42, (0.0, 0.0, 8.0, 8.0)),
    FoundBox("cat", 0, 0.4, (1.0, 1.0, 2.0, 2.0)),
))  # fmt: skip


def test_plain_data():
    first = ANSWER.to_json()["boxes"][0]
    assert first == {"label": "cat", "index": 0, "score": 0.91, "box": [10.0, 5.0, 20.0, 15.0]}
    assert ANSWER.brief() == "2 cat, 1 dog"
    assert "cat 91 % at 10 5 20 15" in ANSWER.text()
    row = {"count": 3, "label": "cat", "score": 0.91, "boxes": None, "width": None, "height": None}
    assert ANSWER.row() | {"boxes": None} == row
    assert ANSWER.row()["boxes"][1] == ["dog", 0.42, 0.0, 0.0, 8.0, 8.0]
    assert [bar.label for bar in ANSWER.bars()] == ["box 0", "box 1", "box 2"]


def test_many_boxes_are_counted():
    assert "and 8 more" in BoxesAnswer(ANSWER.boxes[:1] * 20).text()


def test_no_boxes():
    nothing = BoxesAnswer(())
    assert (nothing.text(), nothing.brief(), nothing.to_json()) == ("no boxes", "no boxes", {"boxes": []})
    assert nothing.row() == {"count": 0, "label": None, "score": None, "boxes": [], "width": None, "height": None}
    placed = nothing.placed(torch.eye(2, 3), (4, 6))
    assert (placed.boxes, placed.size, placed.row()["width"]) == ((), (4, 6), 6)
    assert len(nothing.bars()) == 1
    image = torch.zeros(3, 8, 8, dtype=torch.uint8)
    assert nothing.draw(image) is image


def test_placed_on_the_picture():
    maps = torch.tensor([[2.0, 0.0, -10.0], [0.0, 2.0, 0.0]])  # the input is half as large, with a margin of 5
    placed = ANSWER.placed(maps, (30, 24))
    assert placed.boxes[0].corners == (10.0, 10.0, 24.0, 30.0), "clipped to the picture"
    assert placed.boxes[1].corners == (0.0, 0.0, 6.0, 16.0)
    assert placed.boxes[0].score == ANSWER.boxes[0].score


def test_drawn_where_the_box_is():
    image = torch.zeros(3, 20, 30, dtype=torch.uint8)
    drawn = BoxesAnswer(ANSWER.boxes[:1]).draw(image)
    changed = (drawn != image).any(dim=0).nonzero()
    assert changed.amin(dim=0).tolist() == [5, 10]
    assert changed.amax(dim=0).tolist() == [14, 19]


def test_drawn_boxes_are_numbered_where_there_is_room():
    image = torch.zeros(3, 60, 200, dtype=torch.uint8)
    wide, narrow = (0.0, 0.0, 190.0, 50.0), (0.0, 0.0, 14.0, 50.0)
    for corners in (wide, narrow):
        one = ANSWER.boxes[0]._replace(corners=corners)
        first, second = (BoxesAnswer(boxes).draw(image) for boxes in ((one,), (one._replace(score=0.0), one)))
        assert not torch.equal(first, second)  # the same box is 0 in one picture and 1 in the other
