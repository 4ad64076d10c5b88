"""CvT: published sizes, no positions, and images of any size."""

import pytest
import torch
from support.published import Published, check_published, sizes
from support.registered import tiny

from vitrail.errors import InputError

PAPER = "arXiv:2103.15808, table 2; W24: table 3, at 384 x 384"
PUBLISHED = {
    "cvt_13": Published(19.98, 4.53, PAPER),
    "cvt_21": Published(31.54, 7.13, PAPER),
    "cvt_w24": Published(277, 193.2, PAPER),
}


@sizes(PUBLISHED)
def test_has_the_published_size(name):
    check_published(name, PUBLISHED[name])


def test_there_are_no_positions_but_order_matters():
    model = tiny("cvt_13")
    assert not any("position" in name or "table" in name for name, _ in model.named_parameters())
    images = torch.randn(1, 3, *model.config.image_size)
    assert not torch.allclose(model(images), model(images.flip(3)))


def test_the_head_reads_the_class_token():
    model = tiny("cvt_13")
    features = model.features(torch.randn(2, 3, 33, 47))
    assert torch.equal(model.pooled(features), features.prefix[:, 0])
    louder = features._replace(patches=features.patches + 1)
    assert torch.equal(model.classify(louder), model.classify(features))


def test_the_smallest_image_is_named():
    model = tiny("cvt_13")
    assert model(torch.randn(1, 3, 3, 3)).shape == (1, 5)
    with pytest.raises(InputError, match=r"2 x 9 .*3 x 3"):
        model(torch.randn(1, 3, 2, 9))
