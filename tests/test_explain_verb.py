"""`vitrail explain`, as a person types it: pages, tables, statistics, and one sentence for each mistake."""

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from registered import tiny

import vitrail
from vitrail.cli import main
from vitrail.cli.explain_verb import MOST_PICTURES
from vitrail.errors import Notice


def saved(folder: Path, name: str = "vit_tiny_patch16", **changes: object) -> str:
    """A tiny model with three named classes."""
    model = tiny(name, num_classes=3, **changes)
    model.labels = ("cat", "dog", "tabby cat")
    vitrail.save(model, folder)
    return str(folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("runs") / "one", image_size=32)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, chance = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number in range(3):
        Image.fromarray(chance.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    return folder


def stored(page: Path) -> dict:
    text = page.read_text(encoding="utf-8")
    return json.loads(text.partition('id="data">')[2].partition("</script>")[0])


def test_a_page(run: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "page.html"
    words = ["explain", run, str(photos / "0.png"), str(photos / "1.png"), "--method", "rollout,relevance"]
    assert main([*words, "--target", "cat", "--layers", "1", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert f"page: {out}" in said
    assert "mean over 2 pictures" in said
    page = stored(out)
    assert page["pictures"] == [str(photos / "0.png"), str(photos / "1.png")]
    view = page["views"][0]
    assert view["target"] == "cat"
    assert list(view["maps"]) == ["rollout", "relevance"]
    assert [row["method"] for row in view["scores"]] == ["rollout", "relevance", "random", "centre"]
    assert [layer["number"] for layer in view["layers"]] == [1]
    assert {label for label, _ in view["answers"]} == {"cat", "dog", "tabby cat"}


def test_a_table_and_json_without_a_page(run: str, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", run, str(photos), "--method", "gradient"]) == 0
    said = capsys.readouterr().out
    assert said.count("gradient") == said.count("centre") == 4  # three pictures, and their mean
    assert main(["explain", run, str(photos), "--method", "gradient", "--json"]) == 0
    each, means = json.loads(capsys.readouterr().out)["sections"]
    assert len(each["rows"]) == 9
    assert all(row["picture"] and row["prediction"] in ("cat", "dog", "tabby cat") for row in each["rows"])
    assert [row["method"] for row in means["rows"]] == ["gradient", "random", "centre"]
    mean = sum(row["deletion"] for row in each["rows"] if row["method"] == "gradient") / 3
    assert means["rows"][0]["deletion"] == pytest.approx(mean)


def test_two_models(run: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other, out = saved(tmp_path / "cnn", "resnet50"), tmp_path / "page.html"
    words = ["explain", run, str(photos / "0.png"), "--against", other, "--out", str(out)]
    assert main([*words, "--json"]) == 0
    sections = json.loads(capsys.readouterr().out)["sections"]
    assert {row["model"] for row in sections[0]["rows"]} == {run, other}
    assert "has no attention to look at" in sections[-1]["text"]
    first, second = stored(out)["views"]
    assert first["layers"]
    assert not second["layers"]
    assert "has no attention" in second["why"]


def test_the_packaged_model(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    assert main(["explain", "packaged", str(photos / "0.png"), "--out", str(out), "--method", "attention"]) == 0
    assert "trained on fashion-mnist-12k" in capsys.readouterr().err
    view = stored(out)["views"][0]
    assert len(view["layers"]) == 3
    assert all(layer["cells"] == [4, 4] and layer["count"] == 4 for layer in view["layers"])


def test_statistics(run: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", run, str(photos), "--statistics"]) == 0
    assert "Attention distance" in capsys.readouterr().out
    out = tmp_path / "statistics.html"
    assert main(["explain", run, str(photos), "--statistics", "--layers", "0", "--out", str(out), "--json"]) == 0
    sections = {section["title"]: section for section in json.loads(capsys.readouterr().out)["sections"]}
    assert sections["Measured"]["values"]["images"] == 3
    assert [row["layer"] for row in sections["By layer"]["rows"]] == [0]
    assert "Attention distance" in out.read_text(encoding="utf-8")


def test_at_a_size_other_than_the_trained_one(run: str, photos: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        vitrail.save(vitrail.load(run, image_size=(48, 32)), tmp_path / "moved")
    out = tmp_path / "page.html"
    assert main(["explain", str(tmp_path / "moved"), str(photos / "0.png"), "--out", str(out)]) == 0
    assert stored(out)["views"][0]["layers"][0]["grid"] == [6, 4]


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What is said to a mistake: one line, with exit code 2."""
    capsys.readouterr()
    assert main(words) == 2
    (told,) = (line for line in capsys.readouterr().err.splitlines() if not line.startswith("vitrail: note:"))
    assert told.startswith("vitrail: error: ")
    return told


def test_mistakes_get_one_sentence(run: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, page = str(photos / "0.png"), str(tmp_path / "page.html")
    (tmp_path / "text.jpg").write_text("<html>not a picture, but an error page of a server</html>")
    (tmp_path / "empty").mkdir()
    cnn = saved(tmp_path / "cnn", "resnet50")
    for words, says in [
        ([run, str(tmp_path / "text.jpg")], "text.jpg cannot be decoded: it is an HTML page"),
        ([run, str(tmp_path / "text.jpg"), "--statistics"], "text.jpg cannot be decoded: it is an HTML page"),
        ([run, str(tmp_path / "none.jpg")], "none.jpg cannot be read: No such file or directory"),
        ([run, str(tmp_path / "empty")], "is a folder without images"),
        ([run, good, "--layers", "7", "--out", page], "layer 7 does not exist; there are 2 attention layers, 0 to 1"),
        ([run, good, "--layers", "7", "--statistics"], "layer 7 does not exist"),
        ([run, good, "--layers", "0"], "--layers chooses what a page keeps"),
        ([run, good, "--target", "cta"], "there is no class 'cta'; did you mean 'cat'?"),
        ([run, good, "--target", "9"], "there is no class 9; the model has 3, from 0 to 2"),
        ([run, good, "--method", "relevence"], "did you mean 'relevance'?"),
        ([run, good, "--steps", "0"], "steps is 0; it must be 1 or more"),
        ([run, good, "--statistics", "--target", "cat"], "leave out --target"),
        ([cnn, good, "--method", "rollout"], "ResNet has no attention to look at"),
        ([cnn, good, "--layers", "0", "--out", page], "ResNet has no attention to look at"),
        ([cnn, good, "--statistics"], "ResNet has no attention to look at"),
        (["nowhere", good], "there is no nowhere"),
        ([run, good, "--out", str(tmp_path / "text.jpg" / "page.html")], "the page cannot be written to"),
    ]:
        assert says in refused(["explain", *words], capsys)
    assert not Path(page).exists()


def test_a_broken_file_among_good_ones(
    run: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(photos, tmp_path / "mixed"))
    (folder / "a.jpg").write_text("<html>")
    out = tmp_path / "page.html"
    told = refused(["explain", run, str(folder), "--method", "gradient", "--out", str(out)], capsys)
    assert "1 of 4 pictures could not be read" in told
    assert len(stored(out)["pictures"]) == 3  # the others have their page
    assert "1 of 4 pictures" in refused(["explain", run, str(folder), "--statistics"], capsys)


def test_too_many_pictures_for_a_page(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(MOST_PICTURES + 1):
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / f"{number}.png")
    told = refused(["explain", run, str(tmp_path), "--out", str(tmp_path / "page.html")], capsys)
    assert f"at most {MOST_PICTURES} pictures, and {MOST_PICTURES + 1} were named" in told


def test_layers_must_be_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["explain", "packaged", "x.png", "--layers", "first"])
    assert "'first' is no list of layers" in capsys.readouterr().err
