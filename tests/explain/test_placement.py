"""Where tokens stand: shares between grids, and pixels."""

import pytest
import torch
from registered import shrunk

from vitrail.config import apply
from vitrail.explain.placement import members, spread, step, to_pixels


def test_step_is_whole_where_cells_can_be() -> None:
    assert step(8, 4) == 2
    assert step(7, 4) == 2  # the last cell has one row
    assert step(7, 3) == 3
    assert step(10, 4) == 3
    assert step(5, 4) == pytest.approx(1.25)  # cells of two would be three


def test_members_share_each_fine_cell_out() -> None:
    torch.testing.assert_close(
        members(5, 3), torch.tensor([[1.0, 1, 0, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 1]]).double()
    )
    torch.testing.assert_close(members(5, 4).sum(dim=0), torch.ones(5).double())
    torch.testing.assert_close(members(5, 4)[0], torch.tensor([1, 0.25, 0, 0, 0]).double())


def test_a_coarse_token_shares_evenly_and_nothing_is_lost() -> None:
    held = torch.tensor([[1.0, 2.0, 3.0, 4.0]])  # 2 x 2
    found = spread(held, (2, 2), (4, 3))  # columns: two, then one
    expected = torch.tensor([[0.25, 0.25, 1], [0.25, 0.25, 1], [0.75, 0.75, 2], [0.75, 0.75, 2]])
    torch.testing.assert_close(found.view(4, 3), expected)
    torch.testing.assert_close(spread(found, (4, 3), (2, 2)), held)
    assert spread(held, (2, 2), (2, 2)) is held


def test_nearest_pixels_repeat_their_token() -> None:
    config = apply(shrunk("resnet18"), {"image_size": (8, 6)})
    maps = torch.arange(6.0).view(1, 2, 3)
    found = to_pixels(maps, (8, 6), config, smooth=False)
    torch.testing.assert_close(found[0], maps[0].repeat_interleave(4, 0).repeat_interleave(2, 1))


def test_smooth_pixels_are_those_of_bilinear_interpolation() -> None:
    config = shrunk("resnet18")
    maps = torch.rand(2, 4, 3)
    expected = torch.nn.functional.interpolate(maps[:, None], (16, 12), mode="bilinear", align_corners=False)[:, 0]
    torch.testing.assert_close(to_pixels(maps, (16, 12), config), expected)


def test_a_padded_image_keeps_tokens_in_place() -> None:
    """7 rows in cells of 2: the last cell has one row, and no token moves."""
    found = to_pixels(torch.arange(4.0).view(1, 4, 1), (7, 2), shrunk("resnet18"), smooth=False)
    assert found[0, :, 0].tolist() == [0, 0, 1, 1, 2, 2, 3]


def test_overlapping_patches_stand_at_their_middles() -> None:
    config = apply(
        shrunk("vit_tiny_patch16"), {"patch": {"size": 12, "stride": 8, "padding": 2}, "image_size": (24, 24)}
    )
    (grid,) = config.grids((24, 24))
    assert grid == (3, 3)
    maps = torch.zeros(1, 3, 3)
    maps[0, 1, 1] = 1
    found = to_pixels(maps, (24, 24), config)[0]
    # The middle one reads pixels 6 to 17, so that its middle is between 11 and 12.
    torch.testing.assert_close(found, found.flip(0, 1))
    assert found.argmax().item() in {11 * 24 + 11, 11 * 24 + 12, 12 * 24 + 11, 12 * 24 + 12}
    away = apply(config, {"patch": {"size": 12, "stride": 4, "padding": 0}, "image_size": (28, 28)})
    (grid,) = away.grids((28, 28))
    first = torch.zeros(1, *grid)
    first[0, 0, 0] = 1
    found = to_pixels(first, (28, 28), away)[0]
    assert found[5, 5] > found[7, 7] > 0  # the first middle is at 6 pixels from the corner
    assert found[0, 0] == found[5, 5]
    assert found[9:, :].sum() > 0
    assert found[10:, :].sum() == 0  # the next begins to speak four pixels on
