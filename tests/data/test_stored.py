"""How images are kept: the size of each split, and the bytes of all, held against the files that a run writes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_data import photos

from vitrail.data.dataset import Relabelled, Splits
from vitrail.data.split import carve
from vitrail.data.stored import stored_bytes, stored_size
from vitrail.training.assemble import prepare_data
from vitrail.training.distributed import World
from vitrail.training.logs import Logs
from vitrail.training.plan import make_plan


def test_images_stay_as_they_are_or_get_the_models_size_and_room_for_crops() -> None:
    data = photos(4, size=32)
    data.size = (32, 32)
    assert stored_size(data, (32, 32), cropped=True) == (32, 32)
    assert stored_size(data, (224, 224), cropped=True) == (32, 32)  # what is small stays small on disk
    assert stored_size(data, (8, 8), cropped=False) == (8, 8)
    data.size = None
    assert stored_size(data, (224, 224), cropped=True) == (256, 256)
    assert stored_size(data, (224, 224), cropped=False) == (224, 224)


def pictures(root: Path, splits: tuple[str, ...]) -> Path:
    draw = np.random.default_rng(0)
    for place in (root / split / name for split in splits for name in ("cat", "dog")):
        place.mkdir(parents=True)
        for number in range(12):
            Image.fromarray(draw.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(place / f"{number}.png")
    return root


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
    told = stored_bytes(plan.data, (32, 32), channels=3, cropped=crop == "resized")
    assert sum(written) == pytest.approx(told, rel=0.01)


def test_labels_that_were_put_on_images_keep_none_of_them_twice() -> None:
    whole = photos(20)
    whole.array = None  # as files are
    train, val = carve(whole, 0.2, seed=0)
    named = Splits(Relabelled(train, train.labels, ("a", "b")), Relabelled(val, torch.zeros(4, 2), ("a", "b")), None)
    assert stored_bytes(named, (8, 8), channels=1, cropped=False) == 20 * 8 * 8
    assert stored_bytes(named, (7, 7), channels=1, cropped=True) == 20 * 8 * 8 + 4 * 7 * 7


def test_of_images_in_memory_each_part_is_kept_by_itself() -> None:
    parts = Splits(*carve(photos(20), 0.2, seed=0), None)
    assert stored_bytes(parts, (7, 7), channels=1, cropped=True) == 16 * 8 * 8 + 4 * 7 * 7
