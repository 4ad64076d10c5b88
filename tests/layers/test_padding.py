"""Padding on the grids of several levels."""

import torch

from vitrail.layers.padding import Padding


def valid_of(*sizes: tuple[int, int], height: int = 64, width: int = 96) -> torch.Tensor:
    valid = torch.zeros(len(sizes), height, width, dtype=torch.bool)
    for mask, (rows, columns) in zip(valid, sizes, strict=True):
        mask[:rows, :columns] = True
    return valid


def test_counts_and_tokens() -> None:
    padding = Padding.of(valid_of((64, 40), (33, 96)), [(8, 12), (4, 6)])
    assert padding.counts.tolist() == [[[5, 8], [3, 4]], [[12, 5], [6, 3]]]  # columns, rows
    assert padding.tokens.shape == (2, 8 * 12 + 4 * 6)
    assert (~padding.tokens).sum(dim=1).tolist() == [5 * 8 + 3 * 4, 12 * 5 + 6 * 3]
    assert torch.equal(padding.seen[:, 0, 0], ~padding.tokens)


def test_nothing_is_padding() -> None:
    padding = Padding.of(valid_of((64, 96)), [(4, 6)])
    assert not padding.tokens.any()
    points = torch.rand(1, 5, 1, 2)
    assert torch.equal(padding.scaled(points), points)


def test_shares_of_the_image_become_shares_of_the_map() -> None:
    padding = Padding.of(valid_of((32, 48)), [(8, 12), (4, 6)])
    assert padding.ratios(torch.empty(0)).tolist() == [[[0.5, 0.5], [0.5, 0.5]]]
    boxes = torch.tensor([[[[0.5, 0.5, 1.0, 0.2]]]])
    assert torch.allclose(padding.scaled(boxes), torch.tensor([0.25, 0.25, 0.5, 0.1]).expand(1, 1, 2, 4))
