"""The readers of the further sets: classes, parts, and pictures cut around defects."""

from pathlib import Path

from PIL import Image
from support.benchmarks import benchmark as load_benchmark

benchmark = load_benchmark("advice_fresh")


def picture(file: Path, size: int = 640) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (size, size), 128).save(file)


def test_circuits_are_cut_around_each_defect_in_their_own_parts(tmp_path: Path) -> None:
    root = tmp_path / "DeepPCB" / "PCBData"
    picture(root / "g" / "a_test.jpg")
    (root / "g" / "a.txt").write_text("0 0 10 10 1\n600 600 640 640 6\n")
    (root / "trainval.txt").write_text("g/a.jpg g/a.txt\n")
    (root / "test.txt").write_text("")
    found = list(benchmark.circuits(tmp_path))
    assert [(one.label, one.part, one.image.size) for one in found] == [
        ("open", "train", (64, 64)),
        ("pinhole", "train", (64, 64)),
    ]


def test_leaves_are_told_by_plant(tmp_path: Path) -> None:
    picture(tmp_path / "PlantDoc-Dataset" / "train" / "Apple Scab Leaf" / "a b.jpg")
    picture(tmp_path / "PlantDoc-Dataset" / "test" / "Apple leaf" / "c.png")
    assert [(one.label, one.part) for one in benchmark.leaves(tmp_path)] == [("apple", "train"), ("apple", "test")]


def test_apples_are_tested_around_another_axis(tmp_path: Path) -> None:
    root = tmp_path / "Fruit-Images-Dataset"
    for part in ("Training", "Test"):
        for name in ("1_100", "r_1_100"):
            picture(root / part / "Apple Red 1" / f"{name}.jpg", 100)
    assert sorted((one.name, one.part) for one in benchmark.apples(tmp_path)) == [
        ("1_100", "train"),
        ("r_1_100", "test"),
    ]


def test_every_second_picture_is_for_the_test(tmp_path: Path) -> None:
    for number in (1, 2):
        picture(tmp_path / "trashnet" / "dataset-resized" / "glass" / f"glass{number}.jpg")
        picture(tmp_path / "Handwritten-Syllable-Classification-Dataset" / "raw images" / "Ta" / f"Image-{number}.jpg")
    assert [one.part for one in benchmark.trash(tmp_path)] == ["test", "train"]
    assert [(one.label, one.part) for one in benchmark.syllables(tmp_path)] == [("Ta", "train"), ("Ta", "test")]
