"""How images are kept: the size of each split, and the bytes of all, held against the files that a run writes."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from support.small_data import photos

from vitrail.data.augment.augmentation import Augment, AugmentConfig
from vitrail.data.augment.resample import compose
from vitrail.data.dataset import Batch, Retargeted, Splits, Subset
from vitrail.data.feeds.feed import aspect_of
from vitrail.data.feeds.pack_size import stored_as, stored_bytes
from vitrail.data.feeds.packing import pack
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.folder import read_folder
from vitrail.data.sources.rendered import RenderedScenes
from vitrail.data.split import carve
from vitrail.training.assemble import prepare_data
from vitrail.training.distributed import World
from vitrail.training.logs import Logs
from vitrail.training.plan import make_plan


def test_images_stay_as_they_are_or_get_the_models_size_and_room_for_crops() -> None:
    data, large, small = photos(4, size=32), Preprocess(crop=0.9, resize="crop"), Preprocess(image_size=(8, 8))
    data.size = (32, 32)
    for preprocess in (large, Preprocess(image_size=(32, 32))):
        assert stored_as(data, preprocess, cropped=True) == Preprocess(image_size=(32, 32))  # small files stay small
    assert stored_as(data, small, cropped=False) == small
    data.size = None
    assert stored_as(data, large, cropped=False) == large
    stored = stored_as(data, large, cropped=True)
    assert (stored.image_size, stored.resize, stored.crop) == ((256, 256), "squash", 1.0)  # all of the picture


def pictures(root: Path, splits: tuple[str, ...]) -> Path:
    draw = np.random.default_rng(0)
    for place in (root / split / name for split in splits for name in ("cat", "dog")):
        place.mkdir(parents=True)
        for number in range(12):
            Image.fromarray(draw.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(place / f"{number}.png")
    return root


def test_images_of_one_size_are_not_enlarged(tmp_path: Path) -> None:
    """A thin line in a mask is sampled once, and pixels are not blurred twice."""
    folder = pictures(tmp_path, (".",))
    data = read_folder(folder).train

    def kept(rows: int, columns: int) -> tuple[int, int]:
        return stored_as(data, Preprocess(image_size=(rows, columns)), cropped=True).image_size

    assert kept(40, 50) == (40, 50)
    assert kept(36, 44) == (40, 50)  # within the room for crops
    assert kept(32, 48) == (37, 55)  # rows would lose detail, so both have room
    assert kept(96, 96) == (110, 110)  # one larger image among thousands would lose too much
    (folder / "cat/0.png").write_bytes(b"broken")
    assert kept(40, 50) == (40, 50)
    Image.new("RGB", (51, 40)).save(folder / "cat/1.png")
    assert kept(40, 50) == (46, 57)


@pytest.mark.parametrize("crop", ["resized", "none"])
@pytest.mark.parametrize(("splits", "files"), [((".",), (2, 1)), (("train", "val", "test"), (3, 3))])
def test_bytes_are_those_of_the_files_that_a_run_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, splits: tuple[str, ...], files: tuple[int, int], crop: str
) -> None:
    """What validation is carved out of is kept whole; without room for crops, validation lies in the same file."""
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    source = pictures(tmp_path / "photos", splits)
    options = {"image_size": 32, "options": {"dim": 16, "depth": 1, "num_heads": 2}, "augment": {"crop": crop}}
    plan = make_plan(source, model="vit32_small", changes=options)
    prepare_data(plan, World(), Logs(tmp_path, silent=True))
    written = [file.stat().st_size for file in (tmp_path / "cache").rglob("*.pack")]
    assert len(written) == files[crop == "none"]
    expected = stored_bytes(plan.data, plan.preprocess, cropped=crop == "resized")
    assert sum(written) == pytest.approx(expected, rel=0.03)


def sized(size: int) -> Preprocess:
    return Preprocess(image_size=(size, size), channels=1)


def test_targets_that_were_put_on_images_keep_none_of_them_twice() -> None:
    whole = Subset(photos(20), range(20))
    whole.array = None  # as files are
    named = Splits(*(Retargeted(part, {}, {}) for part in carve(whole, 0.2, seed=0)), None)
    assert stored_bytes(named, sized(8), cropped=False) == 20 * 8 * 8
    assert stored_bytes(named, sized(7), cropped=True) == 20 * 8 * 8 + 4 * 7 * 7


def test_of_images_in_memory_each_part_is_kept_by_itself() -> None:
    parts = Splits(*carve(photos(20), 0.2, seed=0), None)
    assert stored_bytes(parts, sized(7), cropped=True) == 16 * 8 * 8 + 4 * 7 * 7


def natural(height: int, width: int) -> torch.Tensor:
    """An image with the statistics of photographs, where large things have more contrast than small ones."""
    draw = torch.Generator().manual_seed(0)
    layers = [
        F.interpolate(torch.randn(1, 3, 3 * 2**level, 4 * 2**level, generator=draw) * 0.6**level, size=(height, width),
                      mode="bicubic")
        for level in range(6)
    ]  # fmt: skip
    return (128 + 45 * torch.stack(layers).sum(0)).clamp(0, 255).to(torch.uint8)


def test_crops_see_the_whole_picture_in_its_own_shape() -> None:
    photo, model = natural(360, 480), Preprocess(image_size=(64, 64))
    stored = stored_as(photos(1), model, cropped=True)
    small, (fitted,) = stored.fit(photo)
    aspects = aspect_of(torch.tensor([photo.shape[2:]]), stored.image_size)
    augment = Augment(AugmentConfig(), model, seed=0, aspects=aspects)
    found = []
    for epoch in range(150):
        images, maps = augment.images(Batch(small, {}, torch.zeros(1, dtype=torch.int64)), epoch)
        across, down = compose(fitted[None], maps)[0].unbind()  # from pixels of the crop to those of the photo
        ends = sorted((float(across[2]), float(across[2] + 64 * across[0])))
        left, right = round(ends[0]), round(ends[1])
        top, bottom = round(float(down[2])), round(float(down[2] + 64 * down[1]))
        part = F.interpolate(photo[:, :, top:bottom, left:right].float(), size=(64, 64), mode="bicubic", antialias=True)
        expected = part.flip(3) if across[0] < 0 else part
        levels = (expected - 255 * (images / 2 + 0.5)).abs().mean()
        found.append((left, right, (right - left) / (bottom - top), float(levels)))
    lefts, rights, ratios, levels = zip(*found, strict=True)
    assert (min(lefts), max(rights)) == (0, 480)
    assert 0.72 < min(ratios) < 0.8
    assert 1.25 < max(ratios) < 1.38
    assert max(levels) < 4


@pytest.mark.parametrize("kind", ["boxes", "mask", "depth"])
def test_what_has_a_place_is_evaluated_at_the_size_that_the_model_sees(kind: str) -> None:
    data = RenderedScenes(2, size=(48, 64), kinds=(kind,))
    fit = Preprocess(image_size=(32, 32), resize="squash")
    assert stored_as(data, fit, cropped=True).image_size == (48, 64)  # augmentation moves targets to the model's size
    stored = stored_as(data, fit, cropped=False)
    assert stored == fit
    values = pack(data, stored).targets[kind]
    if kind == "boxes":
        assert values[..., :4].max() <= 32
    else:
        assert values.shape == (2, 32, 32)
    place = RenderedScenes(2, size=(48, 64), kinds=("class",))
    assert stored_as(place, fit, cropped=False).image_size == (48, 64)
