"""A model that computes NaN gives no answer: an error that names the image and the model, and no NaN in JSON."""

import json

import pytest
import torch
from PIL import Image
from support.run_folder import run_folder

import vitrail
from vitrail.cli import main
from vitrail.errors import CheckpointError
from vitrail.runs.predict import answers


@pytest.fixture
def broken(tmp_path):
    """A run whose model computes NaN for every image."""
    folder = run_folder(tmp_path / "run")
    model = vitrail.load(folder)
    with torch.no_grad():
        model.head.weight.fill_(float("nan"))
    vitrail.save(model, folder)
    return folder


@pytest.fixture
def photos(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (40, 30), (80 * number, 90, 10)).save(tmp_path / "photos" / name / f"{number}.png")
    return tmp_path / "photos"


def test_predict_names_the_image_and_the_model(broken, photos):
    for found in vitrail.predict(str(broken), photos):
        assert found.answer is None
        assert found.path in found.error
        assert str(broken) in found.error
        assert "finite" in found.error


def test_the_command_line_prints_no_nan(broken, photos, capsys):
    status = main(["predict", str(broken), str(photos), "--json"])
    lines = [json.loads(line, parse_constant=pytest.fail) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 4
    assert all("finite" in line["error"] for line in lines)
    assert status in (0, 1, 2)


def test_a_table_has_the_error_of_each_image(broken, photos, tmp_path, capsys):
    main(["predict", str(broken), str(photos), "--out", str(tmp_path / "table.jsonl")])
    rows = [
        json.loads(line, parse_constant=pytest.fail) for line in (tmp_path / "table.jsonl").read_text().splitlines()
    ]
    assert len(rows) == 4
    assert all("finite" in row["error"] for row in rows)
    capsys.readouterr()


def test_evaluate_and_explain_refuse_it(broken, photos):
    with pytest.raises(CheckpointError, match="finite"):
        vitrail.evaluate(str(broken), photos)
    with pytest.raises(CheckpointError, match="finite"):
        vitrail.explain(str(broken), photos)


def test_other_images_of_a_batch_have_their_answers(tmp_path):
    model = vitrail.open(run_folder(tmp_path / "run"))
    images = torch.randint(0, 255, (3, 3, 32, 32), dtype=torch.uint8)
    expected = answers(model, images, top=2)

    class Half:
        task, preprocess, source = model.task, model.preprocess, "half"

        def outputs(self, images):
            found = {name: values.clone() for name, values in model.outputs(images).items()}
            next(iter(found.values()))[1, 0] = float("inf")
            return found

    found = answers(Half(), images, top=2)
    assert found[1] is None
    assert [found[0], found[2]] == [expected[0], expected[2]]
