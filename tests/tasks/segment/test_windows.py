"""Windows: a model without context gives the same as on the whole image, overlaps are averaged, edges are covered."""

import pytest
import torch

from vitrail.errors import InputError
from vitrail.tasks.segment.windows import in_windows


@pytest.mark.parametrize("size", [(8, 8), (8, 9), (13, 20), (16, 11)])
def test_a_model_of_single_pixels_gives_the_same(size):
    images = torch.randn(2, 3, *size)
    found = in_windows(lambda part: part[:, :2] * 2, images, (8, 8))
    torch.testing.assert_close(found, images[:, :2] * 2)


def test_overlaps_are_averaged():
    seen = []

    def run(part):
        seen.append(part.shape[2:])
        return torch.full_like(part, float(len(seen)))

    found = in_windows(run, torch.zeros(1, 1, 4, 6), (4, 4))
    assert seen == [(4, 4), (4, 4)]
    assert found[0, 0, 0].tolist() == [1, 1, 1.5, 1.5, 2, 2]


def test_smaller_images_are_refused():
    with pytest.raises(InputError, match="larger"):
        in_windows(lambda part: part, torch.zeros(1, 1, 4, 4), (8, 8))
