"""Boxes move as pixels do, and shrink to what is visible of them."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.data.targets.box_geometry import area, clip, inside, invert, map_boxes, trim

few = settings(max_examples=60, deadline=None, derandomize=True)
numbers = st.floats(-3, 3, width=32)
corners = st.tuples(*[st.floats(0, 20, width=32)] * 4).map(
    lambda c: [min(c[0], c[2]), min(c[1], c[3]), max(c[0], c[2]), max(c[1], c[3])]
)


@few
@given(box=corners, rows=st.lists(numbers, min_size=6, max_size=6), x=st.floats(0, 1), y=st.floats(0, 1))
def test_a_mapped_box_holds_every_mapped_point_and_no_more(box, rows, x, y):
    maps = torch.tensor(rows).view(1, 2, 3)
    found = map_boxes(torch.tensor([[box]]), maps)[0, 0]
    points = [(box[0] + x * (box[2] - box[0]), box[1] + y * (box[3] - box[1]))]
    points += [(box[a], box[b]) for a in (0, 2) for b in (1, 3)]
    moved = torch.tensor([[a, b, 1.0] for a, b in points]) @ maps[0].T
    assert (moved >= found[:2] - 1e-3).all()
    assert (moved <= found[2:] + 1e-3).all()
    torch.testing.assert_close(moved[1:].amin(0), found[:2], atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(moved[1:].amax(0), found[2:], atol=1e-3, rtol=1e-4)


def test_invert_leads_back():
    maps = torch.tensor([[[2.0, 0.5, 3.0], [-1.0, 1.5, -7.0]], [[-1.0, 0.0, 32.0], [0.0, 1.0, 0.0]]])
    point = torch.tensor([5.0, 9.0, 1.0])
    there = torch.cat([maps @ point, torch.ones(2, 1)], dim=1)
    torch.testing.assert_close((invert(maps) @ there[:, :, None])[..., 0], point[:2].expand(2, 2))


def test_clip_and_area():
    boxes = clip(torch.tensor([[[-3.0, 2.0, 50.0, 9.0], [40.0, 0.0, 60.0, 5.0]]]), (8, 30))
    assert boxes.tolist() == [[[0, 2, 30, 8], [30, 0, 30, 5]]]
    assert area(boxes).tolist() == [[180, 0]]


def test_a_box_shrinks_to_its_visible_pixels():
    visible = torch.ones(1, 10, 20, dtype=torch.bool)
    visible[:, :, 8:] = False  # the right side is hidden
    boxes = torch.tensor([[[2.0, 1.0, 12.0, 6.0], [3.3, 2.2, 7.7, 4.4], [9.0, 1.0, 15.0, 5.0]]])
    found, share = trim(boxes, visible)
    assert found[0, 0].tolist() == [2, 1, 8, 6]
    torch.testing.assert_close(found[0, 1], boxes[0, 1])
    assert share[0].tolist() == [torch.tensor(0.6).item(), 1, 0]


def test_a_hole_in_a_box_moves_no_edge():
    visible = torch.ones(1, 10, 10, dtype=torch.bool)
    visible[:, 4:6, 4:6] = False
    found, share = trim(torch.tensor([[[1.0, 1.0, 9.0, 9.0]]]), visible)
    assert found[0, 0].tolist() == [1, 1, 9, 9]
    assert share[0, 0] == 60 / 64


@few
@given(
    box=st.lists(st.integers(0, 12), min_size=4, max_size=4).map(
        lambda c: [min(c[0], c[2]), min(c[1], c[3]), max(c[0], c[2]) + 1, max(c[1], c[3]) + 1]
    ),
    seed=st.integers(0, 100),
)
def test_trim_is_the_hull_of_visible_pixels(box, seed):
    visible = torch.rand(1, 14, 14, generator=torch.Generator().manual_seed(seed)) < 0.2
    found, share = trim(torch.tensor([[box]]).float(), visible)
    x1, y1, x2, y2 = box
    pixels = visible[0, y1:y2, x1:x2].nonzero()
    assert share[0, 0].item() == torch.tensor(len(pixels) / ((x2 - x1) * (y2 - y1))).item()
    if len(pixels):
        top, left = (pixels.amin(0) + torch.tensor([y1, x1])).tolist()
        bottom, right = (pixels.amax(0) + 1 + torch.tensor([y1, x1])).tolist()
        assert found[0, 0].tolist() == [left, top, right, bottom]


def test_the_pixels_in_boxes():
    boxes = torch.tensor([[[1.0, 2.0, 4.0, 3.0], [0.0, 0.0, 5.0, 5.0]]])
    found = inside(boxes, torch.tensor([[True, False]]), (5, 6))
    assert found.sum() == 3
    assert found[0, 2, 1:4].all()
