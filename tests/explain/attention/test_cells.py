"""Cells of several patches."""

import torch

from vitrail.explain.attention.cells import LayerView, cell_of_patch


def test_cells_are_squares_that_may_be_smaller_at_the_edges() -> None:
    assert cell_of_patch((3, 5), 2).view(3, 5).tolist() == [[0, 0, 1, 1, 2], [0, 0, 1, 1, 2], [3, 3, 4, 4, 5]]


def test_a_view_knows_its_cells() -> None:
    view = LayerView(index=0, name="a", grid=(3, 5), side=2, prefix=(), weights=torch.zeros(1, 6, 6))
    assert view.cells == (2, 3)
