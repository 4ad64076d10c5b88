"""A trained model and an engine are asked in the same way: whole pictures, tiles, drawings."""

from pathlib import Path

import pytest
import torch
from support.shipped import trained
from support.small_detector import SIZE, detector, picture_file

import vitrail
from vitrail.data.decode import decode
from vitrail.deploy.artefact.engine import TorchEngine
from vitrail.errors import ConfigError, Unsupported
from vitrail.runs.predictor import Predictor


@pytest.fixture(scope="module", params=["run", "engine"])
def model(request: pytest.FixtureRequest) -> Predictor:
    return detector() if request.param == "run" else TorchEngine(detector())


def test_tiles_are_in_pixels_of_the_picture(model: Predictor, tmp_path: Path) -> None:
    file, missing = picture_file(tmp_path), tmp_path / "missing.png"
    found, broken = vitrail.predict(model, [file, missing], tile=64)
    assert "cannot be read" in broken.error
    assert found.answer == detector().find_in_tiles(decode(file.read_bytes()), 64)
    corners = torch.tensor([box.corners for box in found.answer.boxes])
    assert corners[:, 2].max() > 100  # in the tiles on the right, which the first one does not reach
    assert corners[:, 3].max() <= SIZE[0]


def test_answers_are_drawn(model: Predictor, tmp_path: Path) -> None:
    files = [picture_file(tmp_path, name) for name in ("a.png", "b.png")]
    vitrail.predict(model, files[0], draw=tmp_path / "one.png")
    assert decode((tmp_path / "one.png").read_bytes()).shape == (3, *SIZE)
    vitrail.predict(model, [*files, decode(files[0].read_bytes())], tile=64, draw=tmp_path / "several")
    assert sorted(file.name for file in (tmp_path / "several").iterdir()) == ["a.png", "b.png", "image 2.png"]
    with pytest.raises(ConfigError, match="folder"):
        vitrail.predict(model, files, draw=tmp_path / "one.png")


def test_tiles_of_damaged_weights(tmp_path: Path) -> None:
    damaged = detector()
    with torch.no_grad():
        next(damaged.task.parameters()).fill_(float("nan"))
    (found,) = damaged.predict(picture_file(tmp_path), tile=64)
    assert "not finite" in found.error


def test_answers_without_a_position(tmp_path: Path) -> None:
    for options in ({"tile": 64}, {"draw": tmp_path / "out.png"}):
        with pytest.raises(Unsupported):
            trained().predict(picture_file(tmp_path), **options)
