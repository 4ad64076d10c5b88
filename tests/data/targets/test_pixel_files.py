"""References to files in rows of bytes, and pixels that move with the image."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.data.augment.resample import Boxes
from vitrail.data.preprocess import Preprocess
from vitrail.data.targets.box_geometry import invert
from vitrail.data.targets.pixel_files import head_of, move_pixels, path_of, references, stretch

few = settings(max_examples=40, deadline=None, derandomize=True)


def test_a_reference_holds_the_path_and_what_the_kind_needs(tmp_path):
    (tmp_path / "a.png").write_bytes(b"x")
    long = tmp_path / "über" / ("long" * 20)
    values = references([tmp_path / "a.png", None, long], [b"12", b"34", b"56"])
    assert values.dtype == torch.uint8
    assert [path_of(value, 2) for value in values] == [tmp_path / "a.png", None, long]
    assert [head_of(value, 2) for value in values] == [b"12", b"34", b"56"]
    assert references([], []).shape[0] == 0


def test_a_changed_file_has_another_reference(tmp_path):
    (tmp_path / "a.png").write_bytes(b"x")
    before = references([tmp_path / "a.png"], [b""])
    (tmp_path / "a.png").write_bytes(b"xy")
    assert not torch.equal(references([tmp_path / "a.png"], [b""]), before)


def test_pixels_are_flipped_and_cropped_exactly():
    values = torch.arange(2 * 8 * 6, dtype=torch.uint8).view(2, 8, 6)
    whole = Boxes(*(torch.full((2,), one) for one in (0.0, 0.0, 8.0, 6.0)), fits=torch.ones(2).bool())
    maps = whole.maps((8, 6), flip=torch.tensor([False, True]))
    found = move_pixels(values, maps, (8, 6), 255)
    assert torch.equal(found[0], values[0])
    assert torch.equal(found[1], values[1].flip(1))
    part = Boxes(*(torch.full((2,), one) for one in (2.0, 1.0, 4.0, 3.0)), fits=torch.ones(2).bool())
    found = move_pixels(values, part.maps((4, 3), flip=torch.zeros(2).bool()), (4, 3), 255)
    assert torch.equal(found, values[:, 2:6, 1:4])


def test_pixels_from_outside_have_a_value_of_their_own():
    shift = torch.tensor([[[1.0, 0.0, 4.0], [0.0, 1.0, -2.0]]])
    found = move_pixels(torch.zeros(1, 8, 8, dtype=torch.uint8), shift, (8, 8), 255)
    assert (found == 255).sum() == 64 - 4 * 6
    assert (found[0, 2:, :4] == 0).all()


@few
@given(
    source=st.tuples(st.integers(20, 70), st.integers(20, 70)),
    size=st.tuples(st.integers(16, 64), st.integers(16, 64)),
    resize=st.sampled_from(["window", "crop", "squash", "pad"]),
)
def test_pixels_move_as_nearest_resizing_moves_the_image(source, size, resize):
    image = torch.randint(1, 255, (1, 1, *source), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    fit = Preprocess(image_size=size, resize=resize, interpolation="nearest", channels=1, mean=(0.0,))
    fitted, maps = fit.fit(image)
    moved = move_pixels(image[:, 0], maps, size, 0)
    assert (moved == fitted[:, 0]).float().mean() > 0.9  # the rounding of a centre between two pixels may differ


@pytest.mark.parametrize("resize", ["squash", "pad", "crop"])
def test_pixels_stretch_to_where_their_maps_lead(resize):
    values = torch.arange(1, 31).view(5, 6)
    maps = Preprocess(image_size=(5, 6), resize=resize).maps(torch.tensor([[18, 34]]))
    found = stretch(values, maps[0], (18, 34), 0)
    assert torch.equal(found, move_pixels(values[None], invert(maps.double()), (18, 34), 0)[0])
    assert bool((found == 0).any()) == (resize == "crop")
