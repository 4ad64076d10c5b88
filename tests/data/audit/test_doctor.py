"""The doctor: each problem is put into a folder and must be found; a good folder must have none."""

import numpy as np
import pytest
from PIL import Image

from vitrail.data.audit.doctor import Cost, examine, fitting_batch
from vitrail.report import Report
from vitrail.training.assemble import prepare_data
from vitrail.training.distributed import World
from vitrail.training.logs import Logs
from vitrail.training.plan import make_plan

RNG = np.random.default_rng(0)


def picture(mode="RGB", size=(40, 30)) -> Image.Image:
    coarse = Image.fromarray(RNG.integers(0, 256, (6, 6, 3), dtype=np.uint8))
    return coarse.resize(size, Image.Resampling.BICUBIC).convert(mode)


@pytest.fixture
def folder(tmp_path):
    for split, count in (("train", 12), ("val", 4)):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(count):
                picture(size=(40 + number, 30)).save(tmp_path / split / name / f"{number}.png")
    return tmp_path


def advice(report: Report) -> str:
    return report["Advice"].text


def look(folder, **options) -> Report:
    return examine(folder, image_size=(32, 32), **options)


def test_healthy_data_is_called_so(folder):
    report = look(folder)
    assert advice(report) == "No problems found."
    assert report["Data"].values["images"] == 32
    assert report["Data"].values["unreadable"] == 0
    assert [row["images"] for row in report["Splits"].rows] == [24, 8]
    assert report["Classes"].rows[1] == {"class": "dog", "train": 12, "val": 4, "share": 0.5}
    assert report["Sizes"].values["width, min / median / max"] == "40 / 43.5 / 51"
    assert report["Kinds"].rows == ({"kind": "PNG colour", "images": 32, "share": 1.0},)
    assert set(report["Duplicates"].values.values()) == {0}
    assert report["Cost"].values["packed images"] == 3 * (24 * 37 * 37 + 8 * 32 * 32)  # room for crops of the first
    assert report["Cost"].values["decoding, images per second and core"] > 0
    assert Report.from_json(report.to_json()).title == report.title
    assert "train" in report.to_html()


def test_unreadable_files_are_named(folder):
    (folder / "train/cat/0.png").write_bytes(b"")
    whole = (folder / "train/cat/1.png").read_bytes()
    (folder / "train/cat/1.png").write_bytes(whole[: len(whole) // 2])
    (folder / "val/dog/1.png").write_bytes(b"<html></html>")
    report = look(folder)
    rows = {row["file"]: row["reason"] for row in report["Unreadable"].rows}
    assert set(rows) == {"train/cat/0.png", "train/cat/1.png", "val/dog/1.png"}
    assert "empty" in rows["train/cat/0.png"]
    assert "truncated" in rows["train/cat/1.png"]
    assert [row["unreadable"] for row in report["Splits"].rows] == [2, 1]
    assert "3 of 32 images" in advice(report)


def test_duplicates_are_found(folder):
    source = Image.open(folder / "train/cat/0.png")
    source.save(folder / "val/cat/copy.bmp")  # other bytes, equal pixels, other split
    source.save(folder / "train/dog/copy.png")  # other label
    source.resize((80, 60), Image.Resampling.BICUBIC).save(folder / "val/cat/larger.png")
    report = look(folder)
    found = report["Duplicates"].values
    assert found["identical, across splits"] == 1
    assert found["identical, within a split"] == 1
    assert found["identical, different label"] == 1
    assert found["similar, across splits"] == 1
    text = advice(report)
    assert "two splits" in text
    assert "different labels: 1" in text
    assert "1 pairs" in text
    rows = report["Duplicates, the first 3"].rows
    assert rows[0] == {
        "pixels": "identical",
        "label": "different",
        "splits": "train, train",
        "image": "train/cat/0.png",
        "duplicate": "train/dog/copy.png",
    }


def test_near_duplicates_within_a_split_are_kept_together_by_groups(folder):
    source = Image.open(folder / "train/cat/0.png")
    source.resize((80, 60), Image.Resampling.BICUBIC).save(folder / "train/cat/larger.png")
    report = look(folder)
    assert report["Duplicates"].values["similar, within a split"] == 1
    assert "--group duplicates" in advice(report)


def test_gaps_and_imbalance(folder):
    for number in range(2, 12):
        (folder / "train/dog" / f"{number}.png").unlink()
    for number in range(30):
        picture(size=(33 + number, 30)).save(folder / "train/cat" / f"more{number}.png")
    for file in (folder / "val/dog").iterdir():
        file.unlink()
    text = advice(look(folder))
    assert "'dog'" in text
    assert "'cat' has 42" in text
    assert "ewer than 10" in text


def test_an_empty_class_folder_is_noted(folder):
    (folder / "train" / "horse").mkdir()
    assert "'train/horse'" in advice(look(folder))


def test_names_and_labels_that_contradict_are_noted(folder):
    rows = [f"train/cat/{number}.png,{'Red' if number else 'red'}" for number in range(12)]
    (folder / "t.csv").write_text("\n".join(["path,label", *rows, "train/cat/11.png,red"]))
    report = look(folder / "t.csv")
    assert "'Red' and 'red'" in advice(report)
    assert "different labels: 1" in advice(report)
    assert "'Red' in line 13 and 'red' in line 14" in report["Notes"].text


def test_a_mix_of_kinds_is_noted(folder):
    picture("L").save(folder / "train/cat/grey.png")
    picture("RGBA").save(folder / "train/cat/clear.png")
    Image.fromarray(RNG.integers(0, 65535, (30, 40), dtype=np.uint16)).save(folder / "train/cat/deep.png")
    report = look(folder)
    kinds = {row["kind"]: row["images"] for row in report["Kinds"].rows}
    assert kinds == {"PNG colour": 32, "PNG grey": 1, "PNG colour, alpha": 1, "PNG grey, 16 bits": 1}
    text = advice(report)
    assert "2 of 35" in text
    assert "white: 1" in text
    assert "8: 1" in text


def test_a_class_that_its_size_gives_away(folder):
    for split in ("train", "val"):
        for file in (folder / split / "dog").iterdir():
            picture(size=(64, 64)).save(file)
    assert "(64 x 64)" in advice(look(folder))


def test_a_class_that_its_kind_gives_away(folder):
    for file in [*(folder / "train/dog").iterdir(), *(folder / "val/dog").iterdir()]:
        picture("L", size=(40 + int(file.stem), 30)).save(file)
    assert "(PNG grey)" in advice(look(folder))


def test_small_images_and_a_limit(folder):
    steps = []
    report = examine(folder, limit=5, progress=lambda done, total: steps.append((done, total)))
    assert report["Data"].values["audited"] == 10
    assert steps[-1] == (10, 10)
    text = advice(report)
    assert "30 pixels" in text
    assert "10 images" in text


def test_the_cost_of_a_model(folder):
    cost = Cost(model="vit", fixed=100, per_image=10, memory=1000, images_per_second=12.0)
    values = look(folder, cost=cost)["Cost"].values
    assert values["largest batch size"] == 16  # 64 would fit, but there are 24 images
    assert values["memory for this batch size"] == 100 + 16 * 10
    assert values["one epoch of training, seconds"] == 2.0
    assert "batch size" not in values
    report = look(folder, cost=Cost(model="vit", fixed=1000, per_image=10, memory=1000))
    assert report["Cost"].values["largest batch size"] == 0
    assert "vit does not fit" in advice(report)


def test_the_cost_of_a_whole_run(folder):
    cost = Cost(model="vit", fixed=100, per_image=10, memory=1000, images_per_second=12.0, batch_size=8, epochs=3)
    values = look(folder, cost=cost)["Cost"].values
    assert values["memory for this batch size"] == 100 + 8 * 10
    assert values["3 epochs with validation, seconds"] > 3 * 2
    values = look(folder, cost=Cost(model="vit", fixed=100, per_image=0, memory=1000, images_per_second=1.0, epochs=0))[
        "Cost"
    ].values
    assert values["features and a linear head, seconds"] > 24
    assert "largest batch size" not in values


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_packed_images_take_what_training_writes(tmp_path, monkeypatch, mode):
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(40):
            picture(mode, size=(70, 66)).save(tmp_path / "photos" / name / f"{number}.png")
    plan = make_plan(tmp_path / "photos", model="vit32_small", changes={"image_size": 48})
    prepare_data(plan, World(), Logs(tmp_path, silent=True))
    written = sum(file.stat().st_size for file in (tmp_path / "cache").rglob("*.pack"))
    assert written > 0
    report = examine(tmp_path / "photos", image_size=(48, 48))
    assert report["Cost"].values["packed images"] == pytest.approx(written, rel=0.01)


@pytest.mark.parametrize(("memory", "batch"), [(1000, 64), (200, 8), (122, 0), (124, 1)])
def test_fitting_batch(memory, batch):
    assert fitting_batch(Cost(model="m", fixed=100, per_image=10, memory=memory)) == batch


def test_one_class_is_examined_all_the_same(tmp_path):
    (tmp_path / "cat").mkdir()
    for number in range(10):
        picture().save(tmp_path / "cat" / f"{number}.png")
    assert "only one class" in advice(look(tmp_path))


def test_several_labels_are_examined(folder):
    rows = [f"train/{name}/{number}.png,{name}|pet" for name in ("cat", "dog") for number in range(12)]
    (folder / "t.csv").write_text("path,labels\n" + "\n".join(rows))
    report = look(folder / "t.csv")
    assert "multi-label" in report["Data"].values["targets"]
    assert report["Classes"].rows[2]["train"] == len(rows) - report["Splits"].rows[1]["images"]


def test_numbers_are_audited(folder):
    rows = [f"train/{name}/{number}.png,{20 + number},train" for name in ("cat", "dog") for number in range(11)]
    rows += ["train/cat/11.png,2000,train", "val/cat/0.png,5,val", "val/cat/1.png,25,val"]
    (folder / "t.csv").write_text("path,age,split\n" + "\n".join(rows))
    report = look(folder / "t.csv")
    assert report["Data"].values["targets"] == "1 number (age)"
    train, val = report["Numbers"].rows
    assert (train["min"], train["max"], train["images"]) == (20, 2000, 23)
    assert val["median"] == 15
    assert "Outliers of age in train: 1" in advice(report)
    assert "age in val outside of the training range: 1" in advice(report)


def test_images_without_labels_are_audited(tmp_path):
    for number in range(12):
        picture(size=(40 + number, 30)).save(tmp_path / f"{number}.png")
    report = look(tmp_path)
    assert report["Data"].values["targets"] == "none"
    assert report.title == f"Audit of {tmp_path}"
    assert advice(report) == "No problems found."
