"""`vitrail explain`, as a person types it: pages, tables, statistics, and one sentence for each mistake."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.registered import tiny

import vitrail
from vitrail.cli import main
from vitrail.cli.explain_verb import MAX_PICTURES
from vitrail.models.checkpoint import convert
from vitrail.packaged import samples


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


def test_without_a_model_the_packaged_one_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(samples()["cat"]), "--method", "grad_cam", "--scores", "none"]) == 0
    assert "explained with packaged" in capsys.readouterr().out
    assert main(["explain", "packaged"]) == 2
    assert "vitrail explain packaged picture.jpg" in capsys.readouterr().err


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
    assert [layer["index"] for layer in view["layers"]] == [1]
    assert {bar["label"] for bar in view["bars"]} == {"cat", "dog", "tabby cat"}


def test_a_table_and_json_without_a_page(run: str, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", run, str(photos), "--method", "gradient", "--steps", "2"]) == 0
    said = capsys.readouterr().out
    assert said.count("gradient") == said.count("centre") == 4  # three pictures, and their mean
    assert "--scores full" in said
    assert main(["explain", run, str(photos), "--method", "gradient", "--steps", "2", "--json"]) == 0
    each, means, _ = json.loads(capsys.readouterr().out)["sections"]
    assert len(each["rows"]) == 9
    assert all(row["picture"] and row["target"] in ("cat", "dog", "tabby cat") for row in each["rows"])
    assert [row["method"] for row in means["rows"]] == ["gradient", "random", "centre"]
    mean = sum(row["deletion"] for row in each["rows"] if row["method"] == "gradient") / 3
    assert means["rows"][0]["deletion"] == pytest.approx(mean)


def test_masks_add_the_pointing_game(
    run: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):  # everything, nothing but a corner that is cut away, a mask for the middle
        known = np.zeros((40, 50), np.uint8)
        known[:, :] = 255 if number == 0 else 0
        known[15:25, 20:30] = 255 if number == 2 else known[0, 0]
        Image.fromarray(known).save(tmp_path / f"{number}.png")
    words = ["explain", run, str(photos), "--masks", str(tmp_path), "--method", "gradient", "--steps", "1"]
    assert main([*words, "--json"]) == 2
    said = capsys.readouterr()
    each, means, _ = json.loads(said.out)["sections"]
    assert "1 of 3 pictures" in said.err
    hits = {(Path(row["picture"]).stem, row["method"]): row["pointing"] for row in each["rows"]}
    assert {hits["0", method] for method in ("gradient", "random", "centre")} == {"hit"}
    assert hits["2", "centre"] == "hit"
    assert {row["method"]: row["pointing"] for row in means["rows"]}["centre"] == 1
    assert "--masks" in refused([*words[:4], "nowhere"], capsys)


def test_images_are_normalised_as_a_foreign_checkpoint_says(
    run: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = convert(run, tmp_path / "foreign", to="hf").parent
    words = ["explain", str(foreign), str(photos / "0.png"), "--json", "--steps", "1", "--method", "gradient"]
    found = []
    for mean in (0.5, 0.2):
        said = {"image_mean": [mean] * 3, "image_std": [0.5] * 3}
        (foreign / "preprocessor_config.json").write_text(json.dumps(said))
        for each in (words, ["explain", str(foreign), str(photos), "--statistics", "--json"]):
            assert main(each) == 0
            found.append(json.loads(capsys.readouterr().out)["sections"])
    assert found[0][0]["rows"][0]["score"] != found[2][0]["rows"][0]["score"]
    assert found[1] != found[3]  # of the attention


def test_two_models(run: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other, out = saved(tmp_path / "cnn", "resnet50"), tmp_path / "page.html"
    words = ["explain", run, str(photos / "0.png"), "--against", other, "--out", str(out), "--steps", "2"]
    assert main([*words, "--json"]) == 0
    sections = json.loads(capsys.readouterr().out)["sections"]
    assert {row["model"] for row in sections[0]["rows"]} == {run, other}
    assert "attention" in sections[1]["text"]
    first, second = stored(out)["views"]
    assert first["layers"]
    assert not second["layers"]
    assert "has no attention" in second["missing"]


def test_the_packaged_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, words = tmp_path / "page.html", ["--method", "attention", "--steps", "1"]
    assert main(["explain", "packaged", str(samples()["cat"]), "--out", str(out), *words]) == 0
    assert "trained on cifar10" in capsys.readouterr().err
    view = stored(out)["views"][0]
    assert view["target"] == "cat"
    assert len(view["layers"]) == 10
    assert all(layer["cells"] == [8, 8] and layer["count"] == 3 for layer in view["layers"])


def test_statistics(run: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", run, str(photos), "--statistics"]) == 0
    assert "Attention distance" in capsys.readouterr().out
    out = tmp_path / "statistics.html"
    assert main(["explain", run, str(photos), "--statistics", "--layers", "0", "--out", str(out), "--json"]) == 0
    sections = {section["title"]: section for section in json.loads(capsys.readouterr().out)["sections"]}
    assert sections["Measured"]["values"]["images"] == 3
    assert [row["layer"] for row in sections["By layer"]["rows"]] == [0]
    assert "Attention distance" in out.read_text(encoding="utf-8")


def test_at_a_size_other_than_the_trained_one(
    run: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    words = ["explain", run, str(photos / "0.png"), "--image-size", "48x32"]
    assert main([*words, "--out", str(out), "--steps", "2"]) == 0
    assert "positions resampled" in capsys.readouterr().err
    assert stored(out)["views"][0]["layers"][0]["grid"] == [6, 4]
    assert main([*words, "--statistics", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sections"][0]["values"]["pixels"] == "48 x 32"
    assert "8 x 8" in refused([*words[:-1], "33"], capsys)


def test_a_name_has_random_weights_and_says_so(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["explain", "mobilevit_xxs", str(photos / "0.png"), "--image-size", "64", "--json"]
    answers = []
    for _ in range(2):
        assert main([*words, "--steps", "1", "--method", "gradient"]) == 0
        said = capsys.readouterr()
        assert "mobilevit_xxs" in said.err
        answers.append(json.loads(said.out)["sections"][0]["rows"])
    assert answers[0] == answers[1]
    assert main([*words, "--statistics"]) == 0


def test_statistics_need_no_head(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vitrail.save(tiny(num_classes=0), tmp_path / "headless")
    assert main(["explain", str(tmp_path / "headless"), str(photos), "--statistics"]) == 0
    assert "Attention distance" in capsys.readouterr().out


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
        ([run, good, "--layers", "7", "--out", page], "layer 7 does not exist"),
        ([run, good, "--layers", "7", "--statistics"], "layer 7 does not exist"),
        ([run, good, "--layers", "0"], "--layers"),
        ([run, good, "--target", "cta"], "did you mean 'cat'?"),
        ([run, good, "--target", "9"], "from 0 to 2"),
        ([run, good, "--method", "relevence"], "did you mean 'relevance'?"),
        ([run, good, "--layers", ",", "--out", page], "layers is empty"),
        ([run, good, "--out", str(tmp_path)], "it is a folder; name a file in it"),
        ([run, good, "--steps", "0"], "steps is 0"),
        ([run, good, "--statistics", "--target", "cat"], "leave out --target"),
        ([cnn, good, "--method", "rollout"], "ResNet has no attention"),
        ([cnn, good, "--layers", "0", "--out", page], "ResNet has no attention"),
        ([cnn, good, "--statistics"], "ResNet has no attention"),
        (["nowhere", good], "nowhere"),
        ([run, good, "--out", str(tmp_path / "text.jpg" / "page.html")], "written"),
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
    assert "1 of 4 pictures" in told
    assert len(stored(out)["pictures"]) == 3  # the others have their page
    assert "1 of 4 pictures" in refused(["explain", run, str(folder), "--statistics"], capsys)


def test_too_many_pictures_for_a_page(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(MAX_PICTURES + 1):
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / f"{number}.png")
    told = refused(["explain", run, str(tmp_path), "--out", str(tmp_path / "page.html")], capsys)
    assert f"at most {MAX_PICTURES} pictures" in told


def test_lists_that_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    for option, text, says in [
        ("--layers", "first", "'first'"),
        ("--method", ",", "no method"),
    ]:
        assert says in refused(["explain", "packaged", "x.png", option, text], capsys)
