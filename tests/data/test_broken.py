"""Broken images: one limit for all splits of a source, the same to the doctor and to a run, and each is named."""

import pytest
from PIL import Image

from vitrail.data.audit.doctor import examine
from vitrail.data.broken import Tally, left_out, lost_from_split, named, too_many
from vitrail.data.sources.opening import open_data
from vitrail.errors import DataError
from vitrail.training.assemble import prepare_data
from vitrail.training.distributed import World
from vitrail.training.logs import Logs
from vitrail.training.plan import make_plan

SMALL = {"image_size": 8, "options": {"dim": 32, "depth": 2, "num_heads": 2}}
FIVE = [(f"{number}.png", f"{number}.png is empty") for number in range(5)]


@pytest.mark.parametrize(
    ("broken", "total", "stops"), [(1, 100, False), (1, 99, True), (29, 2900, False), (30, 2900, True), (0, 0, False)]
)
def test_one_in_a_hundred_is_the_limit(broken, total, stops):
    assert too_many(broken, total) is stops


def test_a_tally_stops_at_once_and_names_a_few():
    tally = Tally(600)
    tally.add(FIVE)
    tally.add([("5.png", "gone")])
    with pytest.raises(DataError, match=r"7 .*600 images.*0.png.*4.png.* 2 more"):
        tally.add([("6.png", "gone")])


def test_a_few_are_named_and_the_rest_counted():
    assert named(FIVE) == "; ".join(reason for _, reason in FIVE)
    assert named([*FIVE, ("x", "gone"), ("y", "gone")]).endswith("4.png is empty; and 2 more")
    assert named([("x.png", "gone")]) == "x.png: gone"
    assert left_out(FIVE[:1]) == "left out as broken: 0.png is empty"
    assert left_out(FIVE[:2]) == "2 broken images were left out: 0.png is empty; 1.png is empty"


def test_classes_that_are_lost():
    assert "'a'" in lost_from_split("val", ["a"])
    assert "not evaluated" in lost_from_split("val", ["a"])
    assert "cannot be learned" in lost_from_split("train", ["a"])


def pictures(root, *, split, count):
    """So many tiny images of two classes."""
    for shade, name in enumerate(("cat", "dog")):
        folder = root / split / name
        folder.mkdir(parents=True)
        Image.new("RGB", (8, 8), (80 * shade, 9, 9)).save(folder / "0.png")
        for number in range(1, count // 2):
            (folder / f"{number}.png").write_bytes((folder / "0.png").read_bytes())
    return root


def spoil(root, *paths):
    for path in paths:
        (root / path).write_bytes(b"")


def prepared(root, **options):
    """What a run makes of a folder, and what it says."""
    plan = make_plan(open_data(root, **options), model="vit32_small", changes=SMALL)
    plan, packs = prepare_data(plan, World(), Logs(root / "run", silent=True))
    return packs, plan.notes


def advice(root):
    return examine(root, image_size=(8, 8))["Advice"].text


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))


def test_chance_does_not_decide_whether_one_broken_image_stops_a_run(tmp_path):
    root, file = pictures(tmp_path, split=".", count=120), "cat/7.png"
    spoil(root, file)
    fell = {}
    for seed in range(60):  # until it has fallen into either split
        splits = open_data(root, seed=seed)
        fell.setdefault(any(splits.val.key(index) == file for index in range(len(splits.val))), seed)
        if len(fell) == 2:
            break
    assert set(fell) == {False, True}
    for in_val, seed in fell.items():
        packs, notes = prepared(root, seed=seed)
        assert len(packs.train) + len(packs.val) == 119
        assert f"left out as broken: {root / file} cannot be decoded: the file is empty (0 bytes)" in notes
        report = examine(root, image_size=(8, 8), seed=seed)
        assert "Unreadable images, which training skips: 1." in report["Advice"].text
        assert report["Splits"].rows[1]["unreadable"] == in_val  # the doctor sees the split of that seed


@pytest.mark.parametrize(
    ("broken", "stops"),
    [
        (("train/cat/3.png", "val/dog/0.png"), False),
        (("test/cat/0.png", "test/dog/0.png"), False),
        (("train/cat/3.png", "val/dog/0.png", "test/dog/0.png"), True),
    ],
    ids=["two", "test", "three"],
)
def test_doctor_and_run_agree_and_name_all_splits(tmp_path, broken, stops):
    for split, count in (("train", 180), ("val", 10), ("test", 10)):
        pictures(tmp_path, split=split, count=count)
    spoil(tmp_path, *broken)
    assert ("training would stop" in advice(tmp_path)) is stops
    if stops:
        with pytest.raises(DataError, match=r"3 .*200 images"):
            prepared(tmp_path)
        return
    packs, notes = prepared(tmp_path)
    assert [where for where, _ in packs.skipped] == [str(tmp_path / path) for path in broken]
    (note,) = [note for note in notes if "left out" in note]
    assert note.startswith("2 broken images were left out: ")
    assert all(str(tmp_path / path) in note for path in broken)


def test_what_broken_images_leave_empty(tmp_path):
    for split, count in (("train", 200), ("val", 2), ("test", 2)):
        pictures(tmp_path, split=split, count=count)
    spoil(tmp_path, "val/dog/0.png")
    assert any("'dog' in the val split" in note for note in prepared(tmp_path)[1])
    assert "'dog' in the val split" in advice(tmp_path)
    spoil(tmp_path, "val/cat/0.png")
    assert "training would stop" in advice(tmp_path)
    with (
        pytest.warns(UserWarning, match="rebuilt"),
        pytest.raises(DataError, match=r"val.*cat/0.png"),
    ):
        prepared(tmp_path)


def test_a_class_that_cannot_be_learned_stops_a_run(tmp_path):
    for split, count in (("train", 200), ("val", 20)):
        pictures(tmp_path, split=split, count=count)
    for name in ("train", "val"):
        pictures(tmp_path / "more", split=name, count=2)
        (tmp_path / "more" / name / "cat").rename(tmp_path / name / "ant")
    spoil(tmp_path, "train/ant/0.png")
    assert "training would stop" in advice(tmp_path)
    with pytest.raises(DataError, match=r"'ant'.*train"):
        prepared(tmp_path)
