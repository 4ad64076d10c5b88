"""A bias in strips: each pair of patches has the entry of its offset, as a view."""

import itertools

import pytest
import torch

from vitrail.layers.strips import Strips, backwards, in_strips, windows

GRIDS = [(1, 1), (3, 2), (2, 5)]
every_grid = pytest.mark.parametrize("grid", GRIDS, ids=str)
every_stride = pytest.mark.parametrize("stride", [1, 2, 3])


def table_of(grid):
    """A different number for each offset and head."""
    rows, columns = (2 * length - 1 for length in grid)
    return torch.arange(2.0 * rows * columns).view(2, rows, columns)


def strips_of(grid, stride=1, prefix=0):
    beside = torch.randn(2, prefix), torch.randn(2, prefix, prefix + grid[0] * grid[1])
    return Strips(in_strips(table_of(grid), stride), *beside, stride)


@every_grid
@every_stride
def test_every_pair_reads_its_offset(grid, stride):
    found, table = strips_of(grid, stride).whole(), table_of(grid)
    asking = itertools.product(range(0, grid[0], stride), range(0, grid[1], stride))
    for query, (y, x) in enumerate(asking):
        for key, (other_y, other_x) in enumerate(itertools.product(range(grid[0]), range(grid[1]))):
            expected = table[:, y - other_y + grid[0] - 1, x - other_x + grid[1] - 1]
            assert torch.equal(found[:, query, key], expected)
    assert found.shape[1] == query + 1


@every_grid
@every_stride
def test_rows_are_some_of_the_whole(grid, stride):
    strips = strips_of(grid, stride, prefix=2)
    rows, columns = strips.queries
    whole = backwards(strips.whole()[:, 2:].mT, 2).mT.unflatten(1, (rows, columns))
    for first, last in itertools.combinations(range(rows + 1), 2):
        assert torch.equal(strips.rows(first, last), whole[:, first:last].transpose(1, 2).flatten(1, 2))


def test_the_prefix_stands_before_all():
    strips = strips_of((3, 2), prefix=2)
    whole = strips.whole()
    assert torch.equal(whole[:, :2], strips.prefix_queries)
    assert torch.equal(whole[:, 2:, :2], strips.prefix[:, None].expand(-1, 6, -1))
    assert torch.equal(whole[:, 2:, 2:], strips_of((3, 2)).whole())


def test_windows_are_no_copy():
    strips = in_strips(table_of((4, 3)))
    assert windows(strips, 1).data_ptr() == strips.data_ptr()
    assert windows(strips, 1).shape == (2, 3, 4, 12)


def test_backwards_by_hand():
    tokens = torch.tensor([8, 9, 0, 1, 2])[:, None]
    assert backwards(tokens, 2)[:, 0].tolist() == [8, 9, 2, 1, 0]
    assert backwards(tokens, 0)[:, 0].tolist() == [2, 1, 0, 9, 8]
