"""Where tokens stand: shares between grids, and pixels."""

import pytest
import torch
from support.registered import pictures, tiny
from torch import Tensor, nn

from vitrail.explain.methods.placement import Stride, Strides, cells, overlaps, record_strides, spread, step, to_pixels
from vitrail.layers.patch import Grid
from vitrail.models.backbone import Backbone


def test_step_is_whole_where_cells_can_be() -> None:
    assert step(8, 4) == 2
    assert step(7, 4) == 2  # the last cell has one row
    assert step(7, 3) == 3
    assert step(10, 4) == 3
    assert step(5, 4) == pytest.approx(1.25)  # cells of two would be three


def test_overlaps_share_each_fine_cell_out() -> None:
    torch.testing.assert_close(
        overlaps(5, 3, cells(5, 3)), torch.tensor([[1.0, 1, 0, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 1]]).double()
    )
    torch.testing.assert_close(overlaps(5, 4, cells(5, 4)).sum(dim=0), torch.ones(5).double())
    torch.testing.assert_close(overlaps(5, 4, cells(5, 4))[0], torch.tensor([1, 0.25, 0, 0, 0]).double())
    # Around 0 and 2, as 3 x 3 with a stride of 2 and a padding of 1 reads; nobody is left alone at the edge.
    torch.testing.assert_close(
        overlaps(4, 2, Stride(2, 0)), torch.tensor([[1.0, 0.5, 0, 0], [0, 0.5, 1, 1]], dtype=torch.float64)
    )


def test_a_coarse_token_shares_evenly_and_nothing_is_lost() -> None:
    held = torch.tensor([[1.0, 2.0, 3.0, 4.0]])  # 2 x 2
    found = spread(held, (2, 2), (4, 3), Strides())  # columns: two, then one
    expected = torch.tensor([[0.25, 0.25, 1], [0.25, 0.25, 1], [0.75, 0.75, 2], [0.75, 0.75, 2]])
    torch.testing.assert_close(found.view(4, 3), expected)
    torch.testing.assert_close(spread(found, (4, 3), (2, 2), Strides()), held)
    assert spread(held, (2, 2), (2, 2), Strides()) is held


def test_pixels_are_those_of_bilinear_interpolation() -> None:
    maps = torch.rand(2, 4, 3)
    expected = torch.nn.functional.interpolate(maps[:, None], (16, 12), mode="bilinear", align_corners=False)[:, 0]
    torch.testing.assert_close(to_pixels(maps, (16, 12), Strides()), expected)


def test_a_padded_image_keeps_tokens_in_place() -> None:
    """7 rows in cells of 2: the last cell has one row, and no token moves."""
    found = to_pixels(torch.arange(4.0).view(1, 4, 1), (7, 2), Strides())
    assert found[0, :, 0].tolist() == [0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75]


def placed(model: nn.Module, images: Tensor) -> Strides:
    with record_strides(model) as strides, torch.no_grad():
        model(images)
    assert not any(part._forward_pre_hooks for part in model.modules())
    return strides


def test_overlapping_patches_stand_at_their_middles() -> None:
    model = tiny(patch={"size": 12, "stride": 8, "padding": 2}, image_size=24)
    # The middle one of 3 x 3 reads pixels 6 to 17, so that its middle is between 11 and 12.
    assert placed(model, pictures(model)).between((24, 24), (3, 3)) == (Stride(8, 3.5), Stride(8, 3.5))
    away = tiny(patch={"size": 12, "stride": 4, "padding": 0}, image_size=28)
    first = torch.zeros(1, 5, 5)
    first[0, 0, 0] = 1
    found = to_pixels(first, (28, 28), placed(away, pictures(away)))[0]
    assert found[5, 5] > found[7, 7] > 0  # the first middle is at 6 pixels from the corner
    assert found[0, 0] == found[5, 5]
    assert found[9:, :].sum() > 0
    assert found[10:, :].sum() == 0  # the next begins to speak four pixels on


def test_strides_add_up_and_gaps_are_cells() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 1, 7, 2, 3),  # 32 -> 16, around 0, 2, 4, ...
        nn.MaxPool2d(2),  # 16 -> 8
        nn.ZeroPad2d((0, 1, 0, 1)),  # a 9 that leads nowhere
        nn.Conv2d(1, 1, 3, 2, 0),  # 9 -> 4
        nn.Conv2d(1, 1, (3, 1), (2, 1), (1, 0)),  # 4 x 4 -> 2 x 4
    )
    strides = placed(net, torch.zeros(1, 1, 32, 32))
    assert strides.between((32, 32), (16, 16))[0] == Stride(2, 0)
    assert strides.between((32, 32), (8, 8))[0] == Stride(4, 1)  # the middle of 0 and 2
    assert strides.between((32, 32), (4, 4))[0] == Stride(8, 3)  # and of 1 and 5
    assert strides.between((32, 32), (2, 4)) == (Stride(16, 3), Stride(8, 3))


def read_by_the_middle_token(model: Backbone) -> tuple[float, Grid]:
    """The middle row of the pixels that the middle token of the first block hangs on, and its grid."""
    entered: list[tuple[Tensor, Grid]] = []
    images = pictures(model, 1).requires_grad_()
    hook = model.blocks[0].register_forward_pre_hook(lambda _, inputs: entered.append(inputs))
    model(images)
    hook.remove()
    tokens, (rows, columns) = entered[0]
    token = tokens[:, -rows * columns :].unflatten(1, (rows, columns))[:, rows // 2, columns // 2]
    (slope,) = torch.autograd.grad(token.square().sum(), images)
    read = slope.abs().sum(dim=(0, 1, 3)).nonzero()[:, 0]
    return (read[0] + read[-1]).item() / 2, (rows, columns)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("vit_tiny_patch16", {}),
        ("vit_tiny_patch16", {"patch": {"kind": "conv", "halvings": 3}}),
        ("levit_128s", {}),
        ("pvt_v2_b0", {}),
        ("xcit_nano_12_p16", {}),
    ],
)
def test_a_token_stands_in_the_middle_of_the_pixels_that_it_reads(name: str, changes: dict[str, object]) -> None:
    """Against autograd: which pixels change a token of the first block."""
    torch.manual_seed(0)
    model = tiny(name, image_size=64, **changes)
    middle, grid = read_by_the_middle_token(model)
    way = placed(model, pictures(model, 1)).between((64, 64), grid)[0]
    assert way.first + (grid[0] // 2) * way.stride == pytest.approx(middle, abs=0.51)
