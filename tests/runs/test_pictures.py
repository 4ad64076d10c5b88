"""Whole pictures: windows, strips and padding."""

import pytest
import torch
import torch.nn.functional as F

from vitrail.data.own_size import Edges
from vitrail.data.preprocess import Preprocess
from vitrail.data.targets.mask_target import MaskTarget
from vitrail.errors import InputError, Unsupported
from vitrail.models.checkpoint.headed.processor import Processing
from vitrail.models.registry import create
from vitrail.runs import pictures
from vitrail.runs.pictures import Pictures, likeliest, padded_batch, pictures_of, window_starts
from vitrail.tasks.segment import SegmentConfig


@pytest.mark.parametrize(
    ("length", "starts"), [(64, [0]), (65, [0, 1]), (95, [0, 31]), (150, [0, 43, 86]), (128, [0, 64])]
)
def test_windows(length: int, starts: list[int]) -> None:
    assert window_starts(length, 64) == starts


@pytest.mark.parametrize("size", [(37, 50), (5, 9), (12, 7)])
@pytest.mark.parametrize("shares", [False, True])
def test_strips_are_the_whole(size: tuple[int, int], shares: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.rand(4, 9, 11)
    monkeypatch.setattr(pictures, "_STRIP", 4 * size[1] * 3)  # three rows
    found = likeliest(values, size, shares=shares)
    whole = F.interpolate(values[None], size=size, mode="bilinear")
    expected = whole / whole.sum(dim=1, keepdim=True) if shares else whole.softmax(dim=1)
    torch.testing.assert_close(found["confidence"], expected.amax(dim=1))
    assert (found["classes"] == expected.argmax(dim=1)).float().mean() > 0.99


def test_padding_is_right_and_below() -> None:
    images = [torch.ones(1, 3, 4, 6), torch.ones(1, 3, 5, 2)]
    padded, valid = padded_batch(images)
    assert padded.shape == (2, 3, 5, 6)
    assert valid.sum(dim=(1, 2)).tolist() == [24, 10]
    assert torch.equal(padded, valid[:, None].float().expand(-1, 3, -1, -1))


@pytest.fixture
def reader() -> Pictures:
    target = MaskTarget(classes=("a", "b"))
    task = SegmentConfig().build(create("pvt_v2_b0", image_size=64, num_classes=0), {target.field: target})
    return pictures_of(task, Processing(preprocess=Preprocess(image_size=(64, 64)), own_size=Edges(shortest=64)))


def grey(height: int, width: int) -> torch.Tensor:
    return torch.full((3, height, width), 99, dtype=torch.uint8)


def test_what_takes_no_padding(reader: Pictures) -> None:
    with pytest.raises(Unsupported, match="sizes"):
        reader.outputs([grey(80, 100), grey(100, 80)], pad=True)


def test_answers_do_not_depend_on_other_pictures(reader: Pictures) -> None:
    alone, again = reader.outputs([grey(80, 100)]), reader.outputs([grey(100, 80), grey(80, 100), grey(70, 70)])
    assert again[1]["confidence"].shape == (1, 80, 100)
    torch.testing.assert_close(again[1], alone[0])


def test_a_picture_that_would_become_huge(reader: Pictures) -> None:
    assert reader.refusal(grey(80, 100)) is None
    with pytest.raises(InputError, match="long"):
        reader.outputs([grey(1, 60_000)])
