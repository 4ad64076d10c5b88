"""Boxes on the command line: drawings, tiles, tables, artefacts and the explanation of one box."""

import json
from pathlib import Path

import pytest
from support.small_detector import SIZE, detector, detector_folder, picture_file

import vitrail
from vitrail.cli import main
from vitrail.data.decode import decode


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return detector_folder(tmp_path_factory.mktemp("runs") / "boxes")


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return picture_file(tmp_path_factory.mktemp("photos"))


def test_the_folder_is_that_of_the_detector(run: Path, photo: Path) -> None:
    assert vitrail.predict(run, photo) == detector().predict(photo)


def test_drawings(run: Path, photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other, words = picture_file(tmp_path, "other.png", seed=1), ["predict", str(run), str(photo), "--device", "cpu"]
    assert main([*words, "--draw", str(tmp_path / "out.png")]) == 0
    assert decode((tmp_path / "out.png").read_bytes()).shape == (3, *SIZE)
    assert main([*words, str(other), "--draw", str(tmp_path / "drawn")]) == 0
    assert {file.name for file in (tmp_path / "drawn").iterdir()} == {"photo.png", "other.png"}
    capsys.readouterr()
    assert main([*words, str(other), "--draw", str(tmp_path / "out.png")]) == 2
    assert "name a folder" in capsys.readouterr().err


def test_tiles(run: Path, photo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", str(run), str(photo), "--json", "--device", "cpu"]
    assert main([*words, "--tile", "64"]) == 0
    found = json.loads(capsys.readouterr().out)["boxes"]
    assert found == detector().find_in_tiles(decode(photo.read_bytes()), 64).to_json()["boxes"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["boxes"] != found


def test_a_table_has_the_same_boxes(run: Path, photo: Path, tmp_path: Path) -> None:
    out = tmp_path / "found.jsonl"
    assert main(["predict", str(run), str(photo), "--out", str(out), "--device", "cpu"]) == 0
    (expected,) = vitrail.predict(run, photo)
    assert json.loads(out.read_text())["boxes"] == expected.answer.row()["boxes"]


@pytest.mark.slow
def test_an_artefact_has_the_same_boxes(run: Path, photo: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    words = ["export", str(run), "--images", str(photo.parent), "--count", "1", "--rounds", "1", "--force"]
    assert main([*words, "--licence", "Apache-2.0", "--out", str(tmp_path)]) == 0
    artefact, out = tmp_path / "model.onnx", tmp_path / "found.jsonl"
    assert main(["predict", str(artefact), str(photo), "--out", str(out)]) == 0
    (expected,) = vitrail.predict(run, photo)
    found = json.loads(out.read_text())["boxes"]
    for ours, theirs in zip(found, expected.answer.row()["boxes"], strict=True):
        assert ours[0] == theirs[0]
        assert ours[1:] == pytest.approx(theirs[1:], abs=0.01)


def test_one_box_is_explained(run: Path, photo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["explain", str(run), str(photo), "--method", "gradient", "--scores", "none", "--device", "cpu"]
    assert main([*words, "--box", "3"]) == 0
    assert "box 3" in capsys.readouterr().out
    gallery = vitrail.explain(run, photo, methods=["gradient"], box=3)
    (expected,) = vitrail.predict(run, photo)
    assert (gallery.views[0].target, gallery.views[0].bars) == ("box 3", expected.answer.bars())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["predict", "packaged", "PHOTO", "--tile", "64"], "boxes, not for 'classify'"),
        (["predict", "packaged", "PHOTO", "--draw", "out.png"], "cannot be drawn"),
        (["predict", "RUN", "PHOTO", "--tile", "0"], "--tile"),
        (["predict", "RUN", "PHOTO", "--draw", "PHOTO"], "overwrite"),
        (["predict", "RUN", "PHOTO", "--draw", "x.png", "--out", "x.csv"], "--draw and --out"),
        (["predict", "RUN", "PHOTO", "--tile", "64", "--out", "x.csv", "--ray", "2"], "--tile and --ray"),
        (["explain", "packaged", "PHOTO", "--box", "0"], "no boxes"),
        (["explain", "RUN", "PHOTO", "--box", "5"], "boxes 0 to 4"),
        (["explain", "RUN", "PHOTO", "--box", "1", "--target", "box 1"], "together"),
    ],
)
def test_what_is_refused(
    words: list[str], message: str, run: Path, photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    before = photo.read_bytes()
    assert main([{"RUN": str(run), "PHOTO": str(photo)}.get(word, word) for word in words]) == 2
    assert message in capsys.readouterr().err
    assert photo.read_bytes() == before
    assert not list(tmp_path.iterdir())
