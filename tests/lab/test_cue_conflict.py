import pytest
import torch

from vitrail.lab.cue_conflict import CLASSES, shape_and_texture


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def test_pictures_are_in_range_and_brightness_tells_no_shape() -> None:
    means = []
    for kind in range(CLASSES):
        images = shape_and_texture(torch.full((400,), kind), None, 28)
        assert images.shape == (400, 1, 28, 28)
        assert images.min() >= 0
        assert images.max() <= 1
        means.append(float(images.mean()))
    assert max(means) - min(means) < 0.02


def test_a_texture_fills_the_shape_and_nothing_else() -> None:
    kinds = torch.arange(40) % CLASSES
    images = shape_and_texture(kinds, kinds, 28)
    corners = images[:, 0, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert ((corners - 0.5).abs() < 0.25).float().mean() > 0.95
    assert (images.amax(dim=(1, 2, 3)) > 0.7).all()
    assert (images[:, :, 8:20, 8:20].amin(dim=(1, 2, 3)) < 0.35).float().mean() > 0.9


def test_textures_have_edges_everywhere_and_plain_shapes_only_at_their_border() -> None:
    def edges(images: torch.Tensor) -> float:
        return float((images.diff(dim=3).abs() > 0.3).float().mean())

    kinds = torch.arange(200) % CLASSES
    assert edges(shape_and_texture(None, kinds, 28)) > 2 * edges(shape_and_texture(kinds, None, 28))


def test_a_weak_texture_leaves_the_shape_bright() -> None:
    kinds = torch.arange(40) % CLASSES
    darkest = [shape_and_texture(kinds, kinds, 28, contrast).amin() for contrast in (0.1, 1.0)]
    assert darkest[0] > 0.2
    assert darkest[1] < 0.1
