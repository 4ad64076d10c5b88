"""Opening data: every kind of source is recognised, and data that no model can learn from is refused."""

import io
import os
import tarfile

import numpy as np
import pytest
from PIL import Image
from support.single_target import classes, counts

from vitrail.data.feeds.batches import Batches
from vitrail.data.sources.folder import Files
from vitrail.data.sources.opening import open_data, open_whole, survey
from vitrail.data.sources.table import Wanted
from vitrail.data.targets import ClassTarget, NumbersTarget
from vitrail.errors import BrokenImage, DataError
from vitrail.training.assemble import prepare_data
from vitrail.training.distributed import World
from vitrail.training.logs import Logs
from vitrail.training.plan import make_plan


def photos(root, classes=("cat", "dog"), count=20, prefix=""):
    for shade, name in enumerate(classes):
        folder = root / prefix / name
        folder.mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (5, 4), (shade, number, 0)).save(folder / f"{number}.png")
    return root


def test_a_folder_splits_by_itself(tmp_path):
    splits = open_data(photos(tmp_path))
    assert (counts(splits.train), counts(splits.val), splits.test) == ([18, 18], [2, 2], None)
    assert "2 class folders" in splits.notes[0]
    assert "4 of 40" in splits.notes[1]
    again = open_data(str(tmp_path))
    assert [again.val.where(i) for i in range(4)] == [splits.val.where(i) for i in range(4)]
    other = open_data(tmp_path, seed=1)
    assert [other.val.where(i) for i in range(4)] != [splits.val.where(i) for i in range(4)]
    assert len(open_data(tmp_path, val=0.25).val) == 10


@pytest.mark.parametrize(("crop", "again"), [("none", 0), ("resized", 8)])
def test_another_seed_decodes_at_most_what_it_is_judged_by(tmp_path, monkeypatch, crop, again):
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    root, opened, read = photos(tmp_path / "photos", count=40), [], Files.read
    monkeypatch.setattr(Files, "read", lambda self, index: opened.append(self.where(index)) or read(self, index))
    small = {"image_size": 8, "augment": {"crop": crop}, "options": {"dim": 32, "depth": 2, "num_heads": 2}}
    for seed, decoded in ((0, 80), (1, again), (2, again)):  # at first, one read serves both sizes
        plan = make_plan(open_data(root, seed=seed), model="vit32_small", changes=small)
        opened.clear()
        _, packs = prepare_data(plan, World(), Logs(tmp_path / "run", silent=True))
        assert (len(packs.train), len(packs.val), len(opened)) == (72, 8, decoded)
        for packed, part in ((packs.train, plan.data.train), (packs.val, plan.data.val)):
            batch = next(Batches(packed, batch_size=80, seed=0, shuffle=False, device="cpu").epoch(0))
            numbers = batch.images[:, 1].flatten(1)[:, 0].tolist()  # how `photos` marks each
            assert numbers == [int(part.key(index).split("/")[1].removesuffix(".png")) for index in range(len(part))]


def test_the_split_does_not_depend_on_where_the_folder_lies(tmp_path):
    one, two = open_data(photos(tmp_path / "one")), open_data(photos(tmp_path / "two"))
    assert [one.val.key(i) for i in range(4)] == [two.val.key(i) for i in range(4)]


def test_validation_from_another_source(tmp_path):
    photos(tmp_path / "a", ("cat", "dog"))
    photos(tmp_path / "b", ("dog", "cat"), count=3)
    splits = open_data(tmp_path / "a", val=tmp_path / "b")
    assert (len(splits.train), counts(splits.val)) == (40, [3, 3])
    photos(tmp_path / "c", ("dog", "cow"), count=3)
    with pytest.raises(DataError, match=r"2 classes.*'cow'"):
        open_data(tmp_path / "a", val=tmp_path / "c")


def test_demo_by_both_names():
    for name in ("demo", "fashion-mnist-12k"):
        splits = open_data(name)
        assert [len(part) for part in splits[:3]] == [10_800, 1_200, 2_000]
        assert counts(splits.val) == [120] * 10


def test_other_kinds_are_recognised(tmp_path):
    images, labels = np.zeros((8, 4, 4), dtype=np.uint8), np.array([0, 1] * 4)
    arrays = tmp_path / "arrays"
    arrays.mkdir()
    np.save(arrays / "X.npy", images)
    np.save(arrays / "y.npy", labels)
    assert len(open_data(arrays).train) == len(open_data(arrays / "X.npy").train) == 6
    np.savez(tmp_path / "d.npz", X=images, y=labels)
    assert len(open_data(tmp_path / "d.npz").val) == 2
    photos(tmp_path / "photos", count=4)
    rows = [f"photos/{name}/{number}.png,{name}" for name in ("cat", "dog") for number in range(4)]
    (tmp_path / "t.csv").write_text("path,label\n" + "\n".join(rows))
    assert len(open_data(tmp_path / "t.csv").train) == 6


def test_shards_by_folder_file_and_pattern(tmp_path):
    buffer = io.BytesIO()
    Image.new("L", (3, 3)).save(buffer, "PNG")
    for shard in range(2):
        with tarfile.open(tmp_path / f"s-{shard}.tar", "w") as archive:
            for number in range(4):
                for suffix, data in (("png", buffer.getvalue()), ("cls", str(number % 2).encode())):
                    info = tarfile.TarInfo(f"{shard}{number}.{suffix}")
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
    assert len(open_data(tmp_path).train) == len(open_data(f"{tmp_path}/s-{{0..1}}.tar").train) == 6
    assert len(open_data(tmp_path / "s-0.tar").train) == 2


def test_known_name_with_a_folder(tmp_path):
    for split in ("train", "test"):
        np.save(tmp_path / f"{split}_images.npy", np.zeros((40, 32, 32, 3), dtype=np.uint8))
        np.save(tmp_path / f"{split}_labels.npy", np.arange(40) % 10)
    splits = open_data(f"cifar10:{tmp_path}")
    assert classes(splits.train)[0] == "airplane"
    assert len(splits.test) == 40


def test_open_whole_takes_what_there_is_to_evaluate(tmp_path):
    photos(tmp_path / "plain", ("dog", "cat"), count=3)
    whole = open_whole(tmp_path / "plain", schema={"label": ClassTarget(classes=("ant", "cat", "dog"))})
    assert counts(whole) == [0, 3, 3]
    for split, count in (("train", 4), ("test", 2)):
        photos(tmp_path / "split", count=count, prefix=split)
    assert len(open_whole(tmp_path / "split")) == 4


def test_survey_does_not_judge(tmp_path):
    photos(tmp_path, ("cat",))
    assert len(survey(tmp_path).train) == 18


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("cifar1O", r"cifar1O .*'cifar10'"),
        ("photo/", r"photo .*'photos'"),
        ("photos/dog", r"photos/dog .*'photos/dogs'"),
        ("photos/xyz", r"photos/xyz .*dogs$"),
        ("no/such/folder", r"no/such/folder .*cifar10, cifar100, demo"),
        ("fashion-mnist:no/such", "no/such"),
    ],
)
def test_names_that_lead_nowhere(source, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos" / "dogs").mkdir(parents=True)
    for name in ("photo.txt", "photos/xyzzy.txt"):
        (tmp_path / name).touch()
    with pytest.raises(DataError, match=message):
        open_data(source)


def test_a_table_beside_images_is_pointed_to(tmp_path):
    photos(tmp_path, ("img",), count=4)
    table = tmp_path / "train.csv"
    table.write_text("path,label\nimg/0.png,a\nimg/1.png,b\nimg/2.png,a\nimg/3.png,b\n")
    for door in (open_data, survey):
        with pytest.raises(DataError, match=rf"'img'.*{table}"):
            door(tmp_path)
    assert len(open_data(table).train) == 2
    photos(tmp_path, ("more",), count=4)
    assert str(table) in open_data(tmp_path).notes[2]
    photos(tmp_path / "flat", ("x",), count=2)
    (tmp_path / "flat/x/t.jsonl").write_text("")
    with pytest.raises(DataError, match=r"class folders.*t.jsonl"):
        open_data(tmp_path / "flat" / "x")


def test_flat_folders_and_tables_without_labels_open(tmp_path):
    photos(tmp_path, ("x",), count=20)
    (tmp_path / "x.csv").write_text("path\n" + "\n".join(f"x/{number}.png" for number in range(20)))
    for source in (tmp_path / "x", tmp_path / "x.csv"):
        splits = open_data(source)
        assert (len(splits.train), len(splits.val), splits.train.schema) == (18, 2, {})


def test_columns_and_kinds_that_are_wanted(tmp_path):
    photos(tmp_path, ("x",), count=20)
    rows = [f"x/{number}.png,{number % 2},{1990 + number}" for number in range(20)]
    (tmp_path / "t.csv").write_text("path,label,year\n" + "\n".join(rows))
    assert open_data(tmp_path / "t.csv").train.schema == {"label": ClassTarget(classes=("0", "1"))}
    years = {"numbers": NumbersTarget(names=("year",))}
    assert open_data(tmp_path / "t.csv", wanted=Wanted(columns=("year",))).train.schema == years
    assert open_data(tmp_path / "t.csv", wanted=Wanted(columns=("year",)), val=tmp_path / "t.csv").val.schema == years
    with pytest.raises(DataError, match="label"):
        open_data(tmp_path / "x", wanted=Wanted(columns=("year",)))
    with pytest.raises(DataError, match="label"):
        open_data("demo", wanted=Wanted(columns=("year",)))


def test_bad_sources_get_one_sentence(tmp_path):
    with pytest.raises(DataError, match="files"):
        open_data(tmp_path)
    photos(tmp_path / "one", ("cat",))
    with pytest.raises(DataError, match=r"one class.*'cat'"):
        open_data(tmp_path / "one")
    photos(tmp_path / "gap", prefix="train")
    photos(tmp_path / "gap", ("cat",), prefix="val")
    with pytest.raises(DataError, match=r"'dog'.*val"):
        open_data(tmp_path / "gap")
    photos(tmp_path / "single", ("a", "b"), count=5)
    photos(tmp_path / "single", ("c",), count=1)
    with pytest.raises(DataError, match=r"'c'.*one image"):
        open_data(tmp_path / "single")
    (tmp_path / "x.docx").write_text("x")
    with pytest.raises(DataError, match=r"x.docx"):
        open_data(tmp_path / "x.docx")


@pytest.mark.parametrize(
    "name", ["x.csv", "x.jsonl", "x.tar", "X.npy", "x.npz", "train-images-idx3-ubyte", "classes.txt", "cifar.tar.gz"]
)
def test_a_pipe_in_place_of_a_file_is_refused_at_once(name, tmp_path):
    labels = {"X.npy": "y.npy", "train-images-idx3-ubyte": "train-labels-idx1-ubyte"}
    if name in labels:
        (tmp_path / labels[name]).write_bytes(b"x")
    if name == "classes.txt":
        for file, shape in (("X.npy", (4, 5, 5)), ("y.npy", (4,))):
            np.save(tmp_path / file, np.zeros(shape, np.uint8))
    os.mkfifo(tmp_path / name)
    alone = name.endswith((".csv", ".jsonl", ".npz", ".gz"))
    with pytest.raises((DataError, OSError), match=r"pipe|not a supported dataset|no files|no images"):
        survey(tmp_path / name if alone else tmp_path)


@pytest.mark.parametrize("cell", ["/dev/zero", "pipe.png", ".", "a\0b.png", "/proc/kcore"])
def test_a_cell_that_names_no_regular_file_is_one_broken_image(cell, tmp_path):
    photos(tmp_path)
    os.mkfifo(tmp_path / "pipe.png")
    rows = [f"{name}/{number}.png,{name}" for name in ("cat", "dog") for number in range(20)]
    (tmp_path / "table.csv").write_text("\n".join(["path,label", *rows, f"{cell},cat"]))
    data = survey(tmp_path / "table.csv", val=0.1).train
    whole = getattr(data, "whole", data)
    assert whole.paths[-1] == cell
    with pytest.raises(BrokenImage):
        whole.read(len(whole) - 1)
    assert whole.fingerprint
