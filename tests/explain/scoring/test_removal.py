"""Insertion and deletion, worked out by hand on a model that reads one corner."""

import torch
from support.corner_model import Corner
from torch import Tensor

from vitrail.explain.methods.target import Target
from vitrail.explain.scoring.removal import Ends, area, baseline, curve, ranks, scores


def test_the_mean_is_flat_and_the_blur_keeps_the_mean_of_a_flat_image() -> None:
    images = torch.rand(2, 3, 20, 30)
    flat = baseline(images, "mean")
    torch.testing.assert_close(flat[:, :, 3, 7], images.mean(dim=(2, 3)))
    torch.testing.assert_close(flat.std(dim=(2, 3)), torch.zeros(2, 3))
    blurred = baseline(images, "blur")
    assert blurred.shape == images.shape
    assert (blurred.std(dim=(2, 3)) < 0.3 * images.std(dim=(2, 3))).all()
    torch.testing.assert_close(baseline(torch.full((1, 1, 8, 8), 0.7), "blur"), torch.full((1, 1, 8, 8), 0.7))


def test_a_blurred_point_is_a_bell_around_it() -> None:
    point = torch.zeros(1, 1, 41, 41, dtype=torch.float64)
    point[..., 20, 20] = 1
    found = baseline(point, "blur")[0, 0]
    ratio = found[20, 24] / found[20, 20]
    torch.testing.assert_close(ratio, torch.tensor(-0.5 * (4 / 4.1) ** 2, dtype=torch.float64).exp())
    torch.testing.assert_close(found, found.T)


def test_ranks_go_from_the_largest_and_breaks_ties_at_random() -> None:
    maps = torch.tensor([[[0.1, 0.9], [0.5, 0.3]]])
    assert ranks(maps).tolist() == [[[3, 0], [1, 2]]]
    equal = ranks(torch.zeros(1, 8, 8)).flatten()
    assert sorted(equal.tolist()) == list(range(64))
    assert equal.tolist() != list(range(64))
    assert torch.equal(equal, ranks(torch.zeros(1, 8, 8)).flatten())


def corner_map(images: Tensor) -> Tensor:
    maps = torch.zeros(len(images), 4, 4)
    maps[:, :2, :2] = 1
    return maps


def test_deletion_takes_the_corner_first() -> None:
    """The corner is 4 of 16 pixels: after a quarter of the way nothing is left to lose."""
    model = Corner()
    images = torch.zeros(1, 1, 4, 4)
    images[..., :2, :2] = 3.0
    target, removed = Target(torch.tensor([0])), baseline(images, "mean")
    found = curve(model, images, removed, corner_map(images), target, direction="deletion", steps=16)
    whole, flat = scores(model, images, target), scores(model, removed, target)
    assert found.shape == (1, 17)
    torch.testing.assert_close(found[:, 0], whole)
    torch.testing.assert_close(found[:, 4:], flat[:, None].expand(-1, 13))
    assert (found.diff(dim=1)[:, :4] < 0).all()
    passes: list[int] = []
    back = curve(
        model, images, removed, corner_map(images), target, direction="insertion", steps=16, ends=Ends(whole, flat),
        on_step=lambda: passes.append(1),
    )  # fmt: skip
    assert len(passes) == 15
    torch.testing.assert_close(back[:, 0], flat)
    torch.testing.assert_close(back[:, 4:], whole[:, None].expand(-1, 13))


def test_area_is_that_of_trapezoids() -> None:
    torch.testing.assert_close(area(torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]])), torch.tensor([0.25, 1.0]))
