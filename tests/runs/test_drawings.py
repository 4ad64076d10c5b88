"""Drawings: one file or a folder, names that do not meet, and pictures that are not overwritten."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from vitrail.errors import ConfigError, Unsupported
from vitrail.runs.drawings import Drawings
from vitrail.tasks.detect.detect_answer import BoxesAnswer, FoundBox
from vitrail.tasks.regress.regression import NumbersAnswer

ANSWER = BoxesAnswer((FoundBox("dot", 0, 0.9, (4.0, 6.0, 20.0, 16.0)),))
GREY = torch.zeros(1, 24, 32, dtype=torch.uint8)


@pytest.mark.parametrize("name", ["out.png", "new/out.JPG", "out.webp"])
def test_one_picture_is_a_file(tmp_path: Path, name: str) -> None:
    assert Drawings(tmp_path / name, ["a.png"]).write("a.png", GREY, ANSWER) == tmp_path / name
    drawn = Image.open(tmp_path / name).convert("RGB")
    assert drawn.size == (32, 24)
    red, _, blue = drawn.getpixel((4, 10))
    assert red > blue + 30  # in colour, on the left side of the box
    assert max(drawn.getpixel((28, 20))) < 40


def test_several_are_a_folder(tmp_path: Path) -> None:
    names = ["a/1.png", "b/1.jpg", "b/2.png"]
    drawings = Drawings(tmp_path / "drawn", names)
    found = [drawings.write(name, GREY, ANSWER).name for name in names]
    assert found == ["1.png", "1-2.png", "2.png"]
    assert {file.name for file in (tmp_path / "drawn").iterdir()} == set(found)


def test_what_cannot_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="folder"):
        Drawings(tmp_path / "out.png", ["a.png", "b.png"])
    with pytest.raises(ConfigError, match=r"\.png"):
        Drawings(tmp_path / "out.txt", ["a.png"])
    with pytest.raises(ConfigError, match="overwrite"):
        Drawings(tmp_path, [str(tmp_path / "a.png")])
    with pytest.raises(ConfigError, match="overwrite"):
        Drawings(tmp_path / "a.png", [str(tmp_path / "a.png")])
    with pytest.raises(Unsupported, match="numbers"):
        Drawings(tmp_path / "out.png", ["a.png"]).write("a.png", GREY, NumbersAnswer((), ()))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".webp"])
def test_only_drawings_are_drawn_over(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out{suffix}"
    for _ in range(2):
        Drawings(path, ["a.png"]).write("a.png", GREY, ANSWER)
    photo = Image.new("RGB", (8, 8), "red")
    for make in (photo.save, lambda file: file.write_text("not an image"), lambda file: file.write_bytes(b"")):
        make(path)
        before = path.read_bytes()
        with pytest.raises(ConfigError, match="exists"):
            Drawings(path, ["a.png"]).write("a.png", GREY, ANSWER)
        assert path.read_bytes() == before
    (tmp_path / "drawn").mkdir()
    photo.save(tmp_path / "drawn" / "1.png")
    with pytest.raises(ConfigError, match="exists"):
        Drawings(tmp_path / "drawn", ["b/1.png", "b/2.png"]).write("b/1.png", GREY, ANSWER)
