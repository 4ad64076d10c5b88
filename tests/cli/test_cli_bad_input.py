"""What is wrong with files, recipe, run or disk is told in one sentence, and nothing that was saved is lost."""

import errno
import os
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import vitrail
from vitrail import files
from vitrail.cli import main

TINY = ["--set", "options.dim=16", "--set", "options.depth=1", "--set", "options.num_heads=2", "--device", "cpu"]
TINY += ["--set", "options.patch.size=16", "--set", "schedule.warmup_epochs=0", "--batch-size", "16"]
MODEL = ["--model", "vit32_small", *TINY]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))


def pictures(folder: Path, *names: str, count: int = 24) -> Path:
    """A folder of tiny pictures in class folders."""
    for place, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.full((32, 32, 3), 40 + 60 * place + number, dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pictures(tmp_path_factory.mktemp("good") / "photos", "dark", "light")


@pytest.fixture(scope="module")
def _begun(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "begun"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITRAIL_CACHE", str(out.parent / "cache"))
        assert main(["train", str(photos), "--epochs", "2", "--out", str(out), *MODEL]) == 0
    return out


@pytest.fixture
def begun(_begun: Path, tmp_path: Path) -> Path:
    """A run of two epochs, to be spoilt."""
    return Path(shutil.copytree(_begun, tmp_path / "begun"))


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What the command line says to a mistake: one line, with exit code 2."""
    capsys.readouterr()
    assert main(words) == 2
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    (told,) = (line for line in shown.splitlines() if line.startswith("vitrail: error: "))
    assert shown.rstrip().endswith(told)  # it is the last word, and all of it
    return told


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def huge_png() -> bytes:
    """A PNG of 30,000 x 30,000 black pixels in 100 kB."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = bytes(1 + 30_000 // 8)
    header = struct.pack(">IIBBBBB", 30_000, 30_000, 1, 0, 0, 0, 0)
    body = zlib.compress(row * 30_000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


# --- data ------------------------------------------------------------------------------------------------------------


def empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


def one_class(folder: Path) -> Path:
    return pictures(folder, "cat")


def class_missing(folder: Path) -> Path:
    pictures(folder / "train", "cat", "dog")
    pictures(folder / "val", "cat")
    return folder


def bad_file(name: str, data: Callable[[], bytes]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (pictures(folder, "cat", "dog") / "cat" / name).write_bytes(data())
        return folder

    return make


def labels_out_of_range(folder: Path) -> Path:
    folder.mkdir()
    np.save(folder / "train_images.npy", np.zeros((20, 8, 8), dtype=np.uint8))
    np.save(folder / "train_labels.npy", np.arange(20) % 3 - 1)
    return folder


DATA = {
    "empty folder": (empty, ["files", "folder"]),
    "one class": (one_class, ["'cat'", "two"]),
    "class missing from a split": (class_missing, ["'dog'", "val", "add some, or remove"]),
    "zero-byte file": (bad_file("0.jpg", lambda: b""), ["0.jpg", "empty", "Repair or remove"]),
    "HTML": (bad_file("page.jpg", lambda: b"<!DOCTYPE html><p>404"), ["page.jpg", "HTML page", "Repair or remove"]),
    "30,000 x 30,000": (bad_file("map.png", huge_png), ["map.png", "900,000,000 pixels", "Repair or remove"]),
    "labels out of range": (labels_out_of_range, ["train_labels.npy", "-1 at 0", "0 or more"]),
}


@pytest.mark.parametrize("case", DATA)
def test_data_that_no_model_could_learn_from(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, words = DATA[case]
    data = make(tmp_path / "data")
    before, out = contents(data), tmp_path / "runs" / "new"
    told = refused(["train", str(data), "--out", str(out), "--epochs", "1", *MODEL], capsys)
    for word in words:
        assert word in told
    assert contents(data) == before
    assert not out.exists()


PICTURES = {
    "empty.jpg": (lambda: b"", "empty (0 bytes)"),
    "page.jpg": (lambda: b"<html>", "HTML page"),
    "map.png": (huge_png, "900,000,000 pixels"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_that_cannot_be_told(
    name: str, begun: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, says = PICTURES[name]
    (tmp_path / name).write_bytes(data())
    good = str(photos / "dark" / "3.png")
    assert main(["predict", str(begun), str(tmp_path / name), good, "--device", "cpu"]) == 2
    shown = capsys.readouterr()
    first, second = shown.out.splitlines()
    assert says in first
    assert second.startswith(f"{good}: ")  # the others are told all the same
    assert shown.err == f"vitrail: error: 1 of 2 pictures was not read, such as {tmp_path / name}\n"


def test_few_broken_images_are_named_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = pictures(tmp_path / "data", "cat", "dog", count=80)
    (data / "cat" / "7.png").write_bytes(b"")
    assert main(["train", str(data), "--out", str(tmp_path / "run"), "--epochs", "1", *MODEL]) == 0
    said = capsys.readouterr().err.replace("\n", " ")
    assert f"left out as broken: {data / 'cat' / '7.png'} cannot be decoded: the file is empty" in said


# --- recipes and runs ------------------------------------------------------------------------------------------------


def test_a_recipe_with_a_misspelt_key(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("epochs: 1\noptimiser: {wieght_decay: 0.1}\n")
    told = refused(["train", str(photos), "--recipe", str(recipe), "--out", str(tmp_path / "run")], capsys)
    assert "optimiser.wieght_decay" in told
    assert "'weight_decay'" in told


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("epochs: 3\noptimiser: {lr: 1e-3\nema: 0.9\n", " line 3", "expected ',' or '}'"),
        ("epochs: 3\n\tema: 0.9\n", " line 2", "cannot start any token"),
    ],
)
def test_a_recipe_that_is_not_valid_yaml(
    text: str, line: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(text)
    message = refused(["train", "demo", "--recipe", str(recipe)], capsys)
    assert str(recipe) in message
    assert line in message
    assert says in message


def other_model(run: Path) -> list[str]:
    return ["--model", "vit32_base"]


def other_recipe(run: Path) -> list[str]:
    return ["--epochs", "5"]


def other_start(run: Path) -> list[str]:
    return ["--from", str(run)]


def no_checkpoint(run: Path) -> list[str]:
    shutil.rmtree(run / "checkpoints")
    return []


def damaged_checkpoints(run: Path) -> list[str]:
    for file in (run / "checkpoints").iterdir():
        file.write_bytes(b"0" * 100)
    return []


def damaged_plan(run: Path) -> list[str]:
    (run / "run.json").write_text("{")
    return []


RESUMES = {
    other_model: "vit32_base",
    other_recipe: "recipe.epochs",
    other_start: "--from",
    no_checkpoint: "--resume",
    damaged_checkpoints: "--out",
    damaged_plan: "run.json",
}


@pytest.mark.parametrize("spoil", RESUMES, ids=lambda spoil: spoil.__name__)
def test_a_resume_as_another_run(
    spoil: Callable[[Path], list[str]], begun: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = spoil(begun)
    before = contents(begun)
    assert RESUMES[spoil] in refused(["train", "--resume", str(begun), "--device", "cpu", *more], capsys)
    assert contents(begun) == before


def test_a_run_without_a_whole_checkpoint_can_be_begun_anew_as_is_said(
    begun: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged_checkpoints(begun)
    words = ["train", str(photos), "--epochs", "1", "--out", str(begun), *MODEL]
    assert f"vitrail train --resume {begun}" in refused(words, capsys)
    told = refused(["train", "--resume", str(begun), "--device", "cpu"], capsys)
    assert f"delete {begun}" in told
    shutil.rmtree(begun / "checkpoints")
    assert "complete" in refused(words, capsys)  # its model is still there
    shutil.rmtree(begun)
    assert main(words) == 0
    assert len((begun / "metrics.jsonl").read_text().splitlines()) == 1  # nothing of the run before


def test_a_resume_on_other_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, run = pictures(tmp_path / "data", "cat", "dog"), tmp_path / "run"
    assert main(["train", str(data), "--out", str(run), "--epochs", "1", *MODEL]) == 0
    before = contents(run / "checkpoints")
    for path in data.rglob("*.png"):
        os.utime(path)  # copied or touched, they are the same images
    assert main(["train", "--resume", str(run), "--device", "cpu"]) == 0
    Image.new("RGB", (32, 32), "red").save(data / "cat" / "3.png")
    told = refused(["train", "--resume", str(run), "--device", "cpu"], capsys)
    assert "data.checksum was" in told
    assert "images and labels" in told
    assert contents(run / "checkpoints") == before


def test_a_run_that_is_not_whole(begun: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = str(photos / "dark" / "3.png")
    best = (begun / "best.json").read_bytes()
    (begun / "best.json").unlink()
    assert "best.json" in refused(["predict", str(begun), picture, "--device", "cpu"], capsys)
    (begun / "best.json").write_bytes(best)
    (begun / "model.safetensors").write_bytes(b"0" * 100)
    assert "safetensors" in refused(["predict", str(begun), picture, "--device", "cpu"], capsys)
    (begun / "model.safetensors").unlink()
    assert ".safetensors" in refused(["eval", str(begun), str(photos), "--device", "cpu"], capsys)


# --- disks -----------------------------------------------------------------------------------------------------------


def fail_from(monkeypatch: pytest.MonkeyPatch, number: int, code: int) -> None:
    """Lets so many weight files be written, and none after them."""
    written = []

    def save(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
        if len(written) >= number:
            Path(path).write_bytes(b"a part of it")
            raise OSError(code, os.strerror(code), str(path))
        written.append(path)
        save_file(tensors, path, metadata)

    monkeypatch.setattr(files, "save_file", save)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS], ids=["full", "read-only"])
def test_a_disk_that_takes_no_more(code: int, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        fail_from(patch, 2, code)  # the best model and the checkpoint of the first epoch
        told = refused(["train", str(photos), "--epochs", "3", "--out", str(run), *MODEL], capsys)
    assert os.strerror(code) in told
    assert f"vitrail train --resume {run}" in told
    assert not [name for name in contents(run) if "/." in name or name.startswith(".")]  # no leftovers
    assert vitrail.load(run).labels == ("dark", "light")
    assert main(["train", "--resume", str(run), "--device", "cpu"]) == 0
    assert vitrail.load(run).labels == ("dark", "light")


def test_a_disk_that_takes_nothing(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(files.tempfile, "mkdtemp", refuse)
    told = refused(["train", str(photos), "--epochs", "1", "--out", str(tmp_path / "run"), *MODEL], capsys)
    assert "run" in told
    assert "Read-only file system" in told
    assert "folder" in told


def test_a_file_in_the_place_of_a_folder(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("precious")
    for out in ("file", "file/run"):
        told = refused(["train", str(photos), "--epochs", "1", "--out", str(tmp_path / out), *MODEL], capsys)
        assert f"the run cannot be written to {tmp_path / out}" in told
    told = refused(["info", "vit32_small", "--html", str(tmp_path / "file" / "page.html")], capsys)
    assert str(tmp_path / "file" / "page.html") in told
    assert "Not a directory" in told
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize(
    "words",
    [
        ["predict", "packaged", "x.jpg", "--out", "file/x.csv"],
        ["eval", "packaged", "demo", "--html", "file/x.html"],
        ["doctor", "demo", "--html", "file/x.html"],
        ["probe", "packaged", "demo", "--out", "file/x.html"],
        ["export", "packaged", "--out", "file/dist"],
        ["convert", "packaged", "file/new"],
        ["models", "--page", "file/docs"],
    ],
    ids=lambda words: words[0],
)
def test_what_cannot_be_written_is_told_before_the_work(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    place = next(word for word in words if word.startswith("file/"))
    told = refused(words, capsys)
    assert place in told
    assert "Not a directory" in told


def test_a_disk_that_fills_under_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    with pytest.MonkeyPatch.context() as patch:

        def full(self: Path, *_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

        patch.setattr(Path, "write_text", full)
        told = refused(["info", "vit32_small", "--html", str(page)], capsys)
    assert str(page) in told
    assert "No space left on device" in told


def test_a_cache_that_cannot_be_kept(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "file"))
    told = refused(["train", str(photos), "--epochs", "1", "--out", str(tmp_path / "run"), *MODEL], capsys)
    assert "packed" in told
    assert "set VITRAIL_CACHE" in told


def test_a_corrupt_cache_is_built_again(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", str(photos), "--epochs", "1", *MODEL]
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    packs = sorted((tmp_path / "cache").rglob("*.pack"))
    assert packs
    for pack in packs:
        content = bytearray(pack.read_bytes())
        content[100] ^= 1
        pack.write_bytes(content)
    capsys.readouterr()
    assert main([*words, "--out", str(tmp_path / "two")]) == 0
    assert "bytes 0 to" in capsys.readouterr().err
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert first == second
