"""Sine positions: different for every cell, the same at any resolution, boxes as waves."""

import torch

from vitrail.layers.sine_position import box_position, sine_position

LIKE = torch.zeros(1, dtype=torch.float64)


def test_every_cell_has_its_own_position():
    positions = sine_position((3, 5), 16, like=LIKE)
    assert positions.shape == (15, 16)
    assert torch.cdist(positions, positions).fill_diagonal_(1.0).min() > 1e-3
    torch.testing.assert_close(positions[0, :8], positions[4, :8])  # the same row
    torch.testing.assert_close(positions[0, 8:], positions[10, 8:])  # the same column


def test_centres_of_cells_are_where_boxes_are():
    centres = sine_position((4, 4), 16, like=LIKE, shift=0.5)
    x = torch.tensor([[[0.375, 0.625, 0.5, 0.5]]], dtype=torch.float64)  # column 1, row 2
    waves = box_position(x, 8)[0, 0]
    torch.testing.assert_close(centres[9], torch.cat([waves[8:16], waves[:8]]), atol=1e-5, rtol=0)
    assert box_position(x, 8).shape == (1, 1, 32)
