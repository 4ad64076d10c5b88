"""Maps are right: a dot painted in the original image appears where the map of the resized or augmented one says."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from vitrail.data.augment import randaugment
from vitrail.data.augment.augmentation import Augment, AugmentConfig
from vitrail.data.augment.randaugment import GEOMETRIC, LIMITS, move
from vitrail.data.augment.resample import BOX_DRAWS, Boxes, compose, random_boxes, shifted, whole_boxes
from vitrail.data.dataset import Batch
from vitrail.data.preprocess import Preprocess

NEAR = 0.25  # pixels of the output; a map that forgets where pixel centres are is off by half a pixel
BLACK = torch.zeros(3, 1, 1)

lengths = st.integers(24, 100)
sizes = st.tuples(lengths, lengths)
# torch 2.11 has no lanczos.
LANCZOS = [] if torch.__version__.startswith("2.11.") else ["lanczos"]
few = settings(max_examples=40, deadline=None, derandomize=True)


def apply(maps: Tensor, points: Tensor) -> Tensor:
    """Points through one map: 2 3, M 2 -> M 2; both are x, y."""
    return points @ maps[:, :2].T + maps[:, 2]


def dot(size: tuple[int, int], at: Tensor, widths: Tensor) -> Tensor:
    """A soft white dot on black, with its centre at x, y and a standard deviation along each axis: uint8 3 H W."""
    x = (torch.arange(size[1]) + 0.5 - at[0]) / widths[0]
    y = (torch.arange(size[0]) + 0.5 - at[1]) / widths[1]
    shade = 255 * torch.exp(-(x[None, :] ** 2 + y[:, None] ** 2) / 2)
    return shade.round().to(torch.uint8).expand(3, *size).contiguous()


def centre(image: Tensor) -> Tensor:
    """The centre of mass x, y of what is bright: C H W, 0 to 255."""
    weight = torch.where(image[0] > 0.05 * image[0].max(), image[0], 0.0).double()
    x, y = torch.arange(image.shape[2]) + 0.5, torch.arange(image.shape[1]) + 0.5
    return torch.stack([(weight.sum(0) * x).sum(), (weight.sum(1) * y).sum()]) / weight.sum()


def points_inside(
    mapping: Tensor, size: tuple[int, int], source: tuple[int, int], first: Tensor
) -> tuple[Tensor, Tensor]:
    """Points of the output around which a dot is visible, M 2; and the deviations of the dot in the source.

    It must be inside of the source, of the output, and of the image between two moves, of which `first` is the map.
    """
    scales = mapping[:, :2].norm(dim=1)  # source pixels for each output pixel, along the axes of the source
    widths = (2 * scales).clamp(min=0.8)
    reach = 4 * float((widths / scales).max()) + 1
    y, x = torch.meshgrid(torch.arange(size[0]) + 0.3, torch.arange(size[1]) + 0.7, indexing="ij")
    points = torch.stack([x, y], dim=-1).view(-1, 2)  # H W 2 -> M 2
    limits, found = torch.tensor([size[1], size[0]]), apply(mapping, points)
    inside = ((points > reach) & (points < limits - reach)).all(1)
    edges, far = 4 * widths, torch.tensor([source[1], source[0]])
    inside &= ((found > edges) & (found < far - edges)).all(1)
    between = torch.linalg.solve(first[:, :2], (found - first[:, 2]).T).T
    margin = edges / first[:, :2].norm(dim=1)
    return points[inside & ((between > margin) & (between < limits - margin)).all(1)], widths


def check(
    mapping: Tensor,
    source: tuple[int, int],
    size: tuple[int, int],
    run: Callable[[Tensor], Tensor],
    pick: float,
    first: Tensor | None = None,
    near: float = NEAR,
) -> None:
    """A dot at the source of one point of the output must appear at that point; `pick` from 0 to 1 chooses it."""
    points, widths = points_inside(mapping, size, source, mapping if first is None else first)
    assume(len(points))
    point = points[int(pick * (len(points) - 1))]
    found = centre(run(dot(source, apply(mapping, point[None])[0], widths)[None])[0].float())
    assert (found - point).abs().max() < near, (found, point)


# --- preprocessing ----------------------------------------------------------------------------------------------------


@few
@given(
    source=sizes,
    size=st.tuples(st.integers(32, 64), st.integers(32, 64)),
    square=st.booleans(),
    resize=st.sampled_from(["window", "crop", "squash", "pad"]),
    crop=st.sampled_from([1.0, 0.9, 0.7]),
    interpolation=st.sampled_from(["bilinear", "bicubic", *LANCZOS, "nearest"]),
    like=st.sampled_from(["timm", "hf"]),
    pick=st.floats(0, 1),
)
def test_fit_returns_the_map_that_it_applies(source, size, square, resize, crop, interpolation, like, pick):
    size = (size[0], size[0]) if square else size
    preprocess = Preprocess(
        image_size=size, mean=(0.0,), crop=crop, resize=resize, interpolation=interpolation, like=like
    )
    mapping = preprocess.maps(torch.tensor([source]))[0]
    fitted, maps = preprocess.fit(torch.zeros(2, 3, *source, dtype=torch.uint8))
    assert fitted.shape == (2, 3, *size)
    assert torch.equal(maps, mapping.expand(2, 2, 3))
    near = 2 * NEAR if interpolation == "nearest" else NEAR
    check(mapping, source, size, lambda images: preprocess.fit(images)[0], pick, near=near)


def test_maps_of_many_sizes_are_those_of_each():
    preprocess = Preprocess(image_size=(48, 32), resize="crop", crop=0.9)
    several = torch.tensor([(60, 80), (80, 60), (48, 32), (60, 80)])
    alone = [preprocess.fit(torch.zeros(1, 3, *size, dtype=torch.uint8))[1] for size in several.tolist()]
    assert torch.equal(preprocess.maps(several), torch.cat(alone))


def test_an_image_of_the_right_size_has_the_identity_map():
    for resize in ("window", "crop", "squash", "pad"):
        maps = Preprocess(image_size=(48, 48), resize=resize).maps(torch.tensor([(48, 48)]))
        assert torch.equal(maps[0], torch.eye(3)[:2])


# --- augmentation -----------------------------------------------------------------------------------------------------


def augmented(config: AugmentConfig, size: tuple[int, int], number: int, aspects: Tensor | None = None):
    """Images -> images from 0 to 255 and maps, all drawn for the sample `number`, without changes of colour."""
    preprocess = Preprocess(image_size=size, mean=(0.0,), std=(1.0,))
    augment = Augment(config, preprocess, seed=5, aspects=aspects)

    def run(images: Tensor) -> tuple[Tensor, Tensor]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(randaugment, "recolour", lambda images, amounts: images)
            images, maps = augment.images(Batch(images, {}, torch.full((len(images),), number)), epoch=3)
        return images * 255, maps

    return run


@few
@given(
    stored=sizes,
    size=st.tuples(st.integers(40, 72), st.integers(40, 72)),
    same=st.booleans(),
    crop=st.sampled_from(["resized", "shift", "none", "jitter"]),
    flip=st.booleans(),
    rotate=st.sampled_from([0.0, 40.0]),
    rounds=st.sampled_from([0, 1, 3]),
    number=st.integers(0, 10_000),
    pick=st.floats(0, 1),
)
def test_augment_returns_the_map_that_it_applies(stored, size, same, crop, flip, rotate, rounds, number, pick):
    stored = size if same else stored
    rounds = 0 if rotate else rounds  # a dot could be outside between the two
    config = AugmentConfig(crop=crop, flip=flip, rotate=rotate, randaugment=rounds, padding=6)
    blank = torch.zeros(1, 3, *stored, dtype=torch.uint8)
    plain = replace(config, randaugment=0, rotate=0.0)
    run, placed = augmented(config, size, number), augmented(plain, size, number)
    check(run(blank)[1][0], stored, size, lambda images: run(images)[0], pick, first=placed(blank)[1][0])


@few
@given(source=sizes, number=st.integers(0, 10_000), pick=st.floats(0, 1))
def test_the_map_from_an_augmented_image_to_the_original(source, number, pick):
    """Stored with both sides resized to one size, then cropped: the two maps, composed, lead to the original."""
    size, store = (48, 48), Preprocess(image_size=(55, 55), resize="squash")
    aspects = torch.full((number + 1,), source[1] / source[0])
    run = augmented(AugmentConfig(scale=(0.6, 1.0)), size, number, aspects)
    stored, first = store.fit(torch.zeros(1, 3, *source, dtype=torch.uint8))
    mapping = compose(first, run(stored)[1])[0]
    check(mapping, source, size, lambda images: run(store.fit(images)[0])[0], pick)


@few
@given(
    size=st.tuples(st.integers(48, 80), st.integers(48, 80)),
    amounts=st.lists(st.tuples(st.sampled_from(GEOMETRIC), st.floats(-1, 1)), min_size=1, max_size=3),
    pick=st.floats(0, 1),
)
def test_the_geometric_operations_return_the_map_that_they_apply(size, amounts, pick):
    drawn = {name: torch.zeros(1, len(amounts)) for name in LIMITS}
    for turn, (name, strength) in enumerate(amounts):
        drawn[name][0, turn] = LIMITS[name] * strength
    _, maps = move(torch.zeros(1, 3, *size), drawn, BLACK)
    check(maps[0], size, size, lambda images: move(images / 255, drawn, BLACK)[0] * 255, pick)


# --- boxes and maps ---------------------------------------------------------------------------------------------------

numbers = st.floats(-3, 3, width=32)
maps_2_3 = st.lists(numbers, min_size=6, max_size=6).map(lambda values: torch.tensor(values).view(1, 2, 3))


@few
@given(first=maps_2_3, then=maps_2_3, last=maps_2_3, x=numbers, y=numbers)
def test_compose_is_one_map_after_the_other(first, then, last, x, y):
    point = torch.tensor([[x, y]])
    expected = apply(first[0], apply(then[0], point))
    torch.testing.assert_close(apply(compose(first, then)[0], point), expected, rtol=1e-4, atol=1e-4)
    left, right = compose(compose(first, then), last), compose(first, compose(then, last))
    torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-3)
    identity = torch.eye(3)[None, :2]
    torch.testing.assert_close(compose(first, identity), first)
    torch.testing.assert_close(compose(identity, first), first)


def test_boxes_map_corners_to_corners():
    top, left, height, width = (torch.tensor([value] * 2) for value in (5.0, 7.0, 20.0, 30.0))
    maps = Boxes(top, left, height, width, fits=top > 0).maps((10, 60), flip=torch.tensor([False, True]))
    corners = torch.tensor([[0.0, 0.0], [60.0, 10.0]])
    assert apply(maps[0], corners).tolist() == [[7, 5], [37, 25]]
    assert apply(maps[1], corners).tolist() == [[37, 5], [7, 25]]


def test_boxes_around_whole_images_only_resize():
    boxes = whole_boxes(torch.zeros(3), (40, 80))
    assert boxes.fits.all()
    assert boxes.mask((40, 80)).all()
    straight = torch.zeros(3, dtype=torch.bool)
    assert torch.equal(boxes.maps((40, 80), flip=straight), torch.eye(3)[:2].expand(3, 2, 3))
    assert boxes.maps((20, 20), flip=straight)[0].tolist() == [[4, 0, 0], [0, 2, 0]]


@few
@given(down=st.integers(-6, 6), right=st.integers(-6, 6), flip=st.booleans(), x=numbers, y=numbers)
def test_a_shift_comes_before_the_flip(down, right, flip, x, y):
    size, stored, mirrored = (30, 40), (60, 100), torch.tensor([flip])
    maps = whole_boxes(mirrored, stored).maps(size, flip=mirrored)
    found = apply(shifted(maps, torch.tensor([down]), torch.tensor([right]), mirrored)[0], torch.tensor([[x, y]]))
    resized = (size[1] - x if flip else x) + right, y + down  # undo the flip, then the shift
    expected = torch.tensor([[resized[0] * stored[1] / size[1], resized[1] * stored[0] / size[0]]])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


@few
@given(source=st.tuples(st.integers(100, 900), st.integers(100, 900)), seed=st.integers(0, 1000))
def test_boxes_have_their_ratio_in_the_original_image(source, seed):
    stored, ratio, scale = (224, 200), (3 / 4, 4 / 3), (0.2, 0.8)
    aspect = torch.full((64,), (source[1] / source[0]) / (stored[1] / stored[0]))
    draws = torch.rand(64, BOX_DRAWS, generator=torch.Generator().manual_seed(seed))
    boxes = random_boxes(draws, stored, scale, ratio, aspect)
    wide, tall = boxes.width * source[1] / stored[1], boxes.height * source[0] / stored[0]
    slack = 1 + 0.5 / torch.minimum(boxes.width, boxes.height) * 2.1  # sides are rounded to whole pixels as stored
    assert (wide / tall < ratio[1] * slack).all()
    assert (wide / tall > ratio[0] / slack).all()
    share = (boxes.width * boxes.height / math.prod(stored))[boxes.fits]
    assert (share < scale[1] * slack[boxes.fits]).all()
    assert (share > scale[0] / slack[boxes.fits]).all()
