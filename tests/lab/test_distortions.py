import pytest
import torch

from vitrail.lab.distortions import occlude, shift, sketch


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5])
def test_about_the_share_is_hidden_in_whole_cells(share: float) -> None:
    images = torch.rand(64, 1, 28, 28)
    hidden = occlude(images, share)
    changed = hidden != images
    assert abs(float(changed.float().mean()) - share) < 0.03
    if share:
        assert torch.allclose(hidden[changed], images.mean())


def test_a_shift_moves_every_image_by_that_many_pixels() -> None:
    images = torch.zeros(32, 1, 9, 9)
    images[:, :, 4, 4] = 1
    places = {tuple(place) for place in (shift(images, 2)[:, 0] == 1).nonzero()[:, 1:].tolist()}
    assert places <= {(2, 4), (6, 4), (4, 2), (4, 6)}
    assert len(places) > 1
    assert torch.equal(shift(images, 0), images)


def test_a_sketch_has_edges_and_no_areas() -> None:
    square = torch.zeros(1, 3, 16, 16)
    square[:, :, 4:12, 4:12] = 0.7
    found = sketch(square)
    assert found.shape == square.shape
    assert found.max() == 1
    assert found[0, :, 7:9, 7:9].max() < 1e-4
    assert found[0, 0, 4, 8] > 0.5
    assert torch.allclose(found, sketch(1 - square), atol=1e-6)
