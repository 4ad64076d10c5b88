"""Groups: never in two splits, however they are named, and shares of classes that stay about even."""

import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vitrail.data.dataset import Found
from vitrail.data.grouping import group_parts, rare_in_groups, with_groups
from vitrail.data.sources.arrays import Arrays
from vitrail.data.sources.opening import open_data
from vitrail.data.sources.table import Wanted
from vitrail.data.split import carve, complete, hold_out
from vitrail.data.targets import ClassTarget
from vitrail.errors import DataError

CLASSES = ClassTarget(classes=("a", "b"))


def made(labels: list[int], groups: list[str] | None = None) -> Arrays:
    data = Arrays(
        np.zeros((len(labels), 2, 2), dtype=np.uint8), {"label": torch.tensor(labels)}, {"label": CLASSES}, name="data"
    )
    data.groups = groups
    return data


@settings(deadline=None)
@given(
    members=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2)), min_size=6, max_size=60),
    shares=st.sampled_from([(0.9, 0.1), (0.5, 0.5), (0.2, 0.2, 0.2, 0.2, 0.2)]),
    seed=st.integers(0, 99),
)
def test_no_group_is_in_two_parts(members: list[tuple[int, int]], shares: tuple[float, ...], seed: int) -> None:
    groups, strata = [f"g{group}" for group, _ in members], [stratum for _, stratum in members]
    place = group_parts(groups, strata, shares, seed)
    assert all(len({at for at, one in zip(place, groups, strict=True) if one == name}) == 1 for name in groups)
    if rare_in_groups(groups, strata, len(shares)) is None and len(set(strata)) == 1:
        assert set(place) == set(range(len(shares)))


def test_parts_have_their_share_of_each_class() -> None:
    draw = np.random.default_rng(0)
    groups = [f"patient {number}" for number in range(120) for _ in range(draw.integers(1, 8))]
    labels = (draw.random(len(groups)) < 0.2).astype(int).tolist()
    for share in (0.1, 0.3):
        place = group_parts(groups, labels, (1 - share, share), 0)
        for stratum in (0, 1):
            mine = np.mean(place[np.array(labels) == stratum])
            assert mine == pytest.approx(share, abs=0.03)


def test_a_class_in_as_many_groups_as_parts_is_in_all() -> None:
    groups = ["a"] * 30 + ["b"] * 30 + ["c"] * 2 + ["d"]
    place = group_parts(groups, [0] * 60 + [1] * 3, (0.9, 0.1), 0)
    assert {place[-1], place[-2]} == {0, 1}


def test_many_groups_and_many_classes_fit_into_memory() -> None:
    groups, strata = [str(number) for number in range(5000)], list(range(5000))  # 200 MB as a table
    tracemalloc.start()
    place = group_parts(groups, strata, (0.5, 0.5), 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(place) == 5000
    assert peak < 20_000_000


def test_carved_parts_and_folds_keep_groups_whole() -> None:
    labels, groups = [0, 1] * 40, [f"g{number // 4}" for number in range(80)]
    train, val = carve(made(labels, groups), 0.2, 0)
    assert not set(train.groups) & set(val.groups)
    assert len(val) == 16
    held = [hold_out(made(labels, groups), (number, 5), 0)[1] for number in range(1, 6)]
    names = Counter(name for part in held for name in set(part.groups))
    assert set(names.values()) == {1}
    assert sum(map(len, held)) == 80
    assert [int(part.targets["label"].sum()) for part in held] == [8] * 5


def test_a_fold_is_held_out_of_training_and_validation() -> None:
    found = Found(made([0, 1] * 50))
    parts = [complete(found, val=0.2, seed=0, fold=(number, 5)) for number in range(1, 6)]
    for one in parts:
        indices = [set(part.indices) for part in (one.train, one.val, one.test)]
        assert len(indices[0] | indices[1] | indices[2]) == 100
        assert [len(part) for part in indices] == [64, 16, 20]
        assert one.train.whole is found.train  # one pack of images serves all folds
    assert sorted(index for one in parts for index in one.test.indices) == list(range(100))
    assert any("Fold 1 of 5" in note for note in parts[0].notes)


def test_a_group_on_both_sides_of_given_splits_is_refused() -> None:
    found = Found(made([0, 1], ["x", "y"]), made([0, 1], ["y", "z"]))
    with pytest.raises(DataError, match="'y'"):
        complete(found, val=None, seed=0)


def test_too_few_groups_or_images_are_refused() -> None:
    with pytest.raises(DataError, match="'b'"):
        carve(made([0, 0, 1, 1], ["x", "y", "z", "z"]), 0.5, 0)
    with pytest.raises(DataError, match="folds"):
        hold_out(made([0, 0, 0, 1, 1]), (1, 3), 0)
    with pytest.raises(DataError, match="fold"):
        hold_out(made([0, 1] * 5), (6, 5), 0)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Four patients with six photos, a photo and a resized copy of it among them; and a table of them."""
    draw, rows = np.random.default_rng(0), ["path,label,patient"]
    for number in range(24):
        patient, label = number // 6, "ab"[number % 2]
        pixels = draw.integers(0, 255, (4, 4, 3), dtype=np.uint8)
        image = Image.fromarray(pixels).resize((40, 40), Image.Resampling.BICUBIC)
        file = tmp_path / "photos" / label / f"p{patient}_{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        image.save(file)
        if number == 5:
            image.resize((36, 36)).save(file.with_name("copy.png"))
        rows.append(f"photos/{label}/{file.name},{label},{patient}")
    (tmp_path / "photos.csv").write_text("\n".join(rows))
    return tmp_path


def test_groups_by_a_column(photos: Path) -> None:
    splits = open_data(photos / "photos.csv", val=0.25, wanted=Wanted(group="patient"))
    assert len(set(splits.val.groups)) == 1
    assert not set(splits.train.groups) & set(splits.val.groups)
    assert any("'patient'" in note for note in splits.notes)
    assert not any("not used" in note for note in splits.notes)


def test_groups_by_a_pattern_of_the_path(photos: Path) -> None:
    (photos / "photos" / "b" / "copy.png").unlink()
    splits = open_data(photos / "photos", val=0.25, wanted=Wanted(group=r"(p\d+)_"))
    assert {len(set(splits.val.groups)), len(set(splits.train.groups))} == {1, 3}
    assert set(splits.val.groups) <= {"p0", "p1", "p2", "p3"}


def test_near_duplicates_stay_together(photos: Path) -> None:
    found = with_groups(open_found(photos / "photos"), "duplicates")
    keys = [found.train.key(index) for index in range(len(found.train))]
    groups = dict(zip(keys, found.train.groups, strict=True))
    assert groups["b/copy.png"] == groups["b/p0_5.png"]
    assert len(set(groups.values())) == 24


def open_found(path: Path) -> Found:
    from vitrail.data.sources.opening import find

    return find(path)


@pytest.mark.parametrize("rule", ["patient(", "patient", "x*"])
def test_rules_that_name_nothing_are_refused(photos: Path, rule: str) -> None:
    with pytest.raises(DataError, match="--group"):
        open_data(photos / "photos", wanted=Wanted(group=rule))


def test_an_empty_cell_is_refused_with_its_line(photos: Path) -> None:
    table = photos / "photos.csv"
    table.write_text(table.read_text().replace("p1_6.png,a,1", "p1_6.png,a,"))
    with pytest.raises(DataError, match="line 8"):
        open_data(table, wanted=Wanted(group="patient"))


def test_groups_and_validation_data_cannot_both_decide(photos: Path) -> None:
    with pytest.raises(DataError, match="--val"):
        open_data(photos / "photos.csv", val=str(photos / "photos"), wanted=Wanted(group="patient"))
