"""The public functions: each takes a path or a trained model and returns something with a short repr."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support import annotated
from support.shipped import trained

import vitrail
from vitrail.cli import main
from vitrail.data.sources.opening import survey
from vitrail.errors import ConfigError
from vitrail.packaged import samples
from vitrail.report import Report

NAMES = sorted(set(vitrail.__all__) - {"Features", "TrainedModel", "errors", "__version__"})


@pytest.fixture(scope="module")
def packaged() -> vitrail.TrainedModel:
    return vitrail.open()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for name, path in list(samples().items())[:2]:
        (folder / name).mkdir()
        for number in range(2):
            Image.open(path).save(folder / name / f"{number}.png")
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_callable_and_has_a_docstring(name: str) -> None:
    function = getattr(vitrail, name)
    assert callable(function)
    assert function.__doc__


@pytest.mark.parametrize("name", ["train", "open", "predict", "evaluate", "explain", "export", "bench", "doctor"])
def test_the_main_functions_are_public(name: str) -> None:
    assert name in NAMES


def test_predict_takes_paths_pictures_arrays_and_tensors(packaged: vitrail.TrainedModel) -> None:
    path = samples()["cat"]
    picture = Image.open(path).convert("RGB")
    array = np.asarray(picture)
    inputs = [path, picture, array, torch.from_numpy(array.copy()).permute(2, 0, 1)]
    answers = [vitrail.predict(packaged, one, top=1)[0].answer for one in inputs]
    assert {answer.text() for answer in answers} == {answers[0].text()}
    assert answers[0].to_json()["answers"][0]["label"] == "cat"
    (by_name,) = vitrail.predict("packaged", path, top=1)
    assert "cat" in repr(by_name)


def test_evaluate_gives_metrics_and_a_report(packaged: vitrail.TrainedModel, photos: Path) -> None:
    found = vitrail.evaluate(packaged, photos)
    assert found.metrics["images"] == 4
    assert isinstance(found.report(), Report)
    assert len(repr(found)) < 200


def test_explain_is_a_function_and_a_package(tmp_path: Path) -> None:
    gallery = vitrail.explain(trained(), samples()["cat"], methods="gradient", out=tmp_path / "cat.html")
    assert (tmp_path / "cat.html").is_file()
    assert len(repr(gallery)) < 200
    assert callable(vitrail.explain.capture)


def test_export_opens_again(photos: Path, tmp_path: Path) -> None:
    model = trained(depth=1)  # of one block: the graph of the packaged model takes ten seconds
    shipped = vitrail.export(model, tmp_path / "dist", to="torch", images=str(photos), certify={"rounds": 1})
    assert "model.pt2" in repr(shipped)
    engine = vitrail.open(tmp_path / "dist" / "model.pt2")
    (found,), (expected,) = (vitrail.predict(each, samples()["cat"], top=1) for each in (engine, model))
    assert found.answer.text() == expected.answer.text()
    (found,) = engine.predict(samples()["cat"], top=1)
    assert found.answer.text() == expected.answer.text(), "an exported file answers as the model does"


def test_doctor_is_titled_after_what_was_named(photos: Path) -> None:
    report = vitrail.doctor(photos)
    assert repr(vitrail.verify()) == "Verification(packaged: run, whole)"
    assert report.title == f"Audit of {photos}"
    assert len(repr(report)) < 250


def test_doctor_takes_a_title_and_splits_that_were_made_already(photos: Path) -> None:
    assert vitrail.doctor(photos, title="cats").title == "Audit of cats"
    splits = survey(photos)
    report = vitrail.doctor(splits)
    assert report.title == f"Audit of {splits.train.name}"
    assert report["Sizes"] == vitrail.doctor(photos)["Sizes"]
    assert vitrail.doctor(splits, title="cats").title == "Audit of cats"
    with pytest.raises(ConfigError, match="seed"):
        vitrail.doctor(splits, seed=1)


def test_columns_are_named_by_a_text_or_a_list(photos: Path, tmp_path: Path) -> None:
    rows = [f"{path},{number},{2 * number},x" for number, path in enumerate(sorted(photos.rglob("*.png")))]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["path,age,weight,other", *rows]))
    found = [vitrail.doctor(table, label=label)["Notes"] for label in ("age, weight", ["age", "weight"])]
    assert found[0] == found[1]
    assert "2 numbers (age, weight)" in str(found[0])


def test_doctor_draws_a_page_of_pictures(tmp_path: Path) -> None:
    vitrail.doctor(annotated.voc(tmp_path / "data"), preview=tmp_path / "preview.html")
    assert (tmp_path / "preview.html").read_text().count("<img") >= 6


def test_a_bare_checkpoint_says_which_preprocessing_is_assumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = vitrail.create("vit_tiny_patch16", num_classes=2, image_size=32, depth=1)
    Image.new("RGB", (32, 32)).save(tmp_path / "black.png")
    file = vitrail.save(model, tmp_path / "model.safetensors")
    assert main(["predict", str(file), str(tmp_path / "black.png")]) == 0
    assert "assumed" in capsys.readouterr().err
