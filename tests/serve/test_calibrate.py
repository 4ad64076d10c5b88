"""Calibration on named images: broken ones are skipped and counted."""

import json
from pathlib import Path

import pytest
import torch
from support.small_service import FakeEngine, picture
from torch import Tensor

from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.opening import open_whole
from vitrail.errors import DataError
from vitrail.serve.calibrate import calibrate
from vitrail.tasks.classify import ClassifyConfig


class Linear(FakeEngine):
    """Logits by the mean of an image, for the classes of a schema."""

    def of_means(self, means: Tensor) -> dict[str, Tensor]:
        return {"logits": means[:, None].float() * torch.tensor([[-1.0, 1.0]]) / 20}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name, level in (("dark", 0), ("light", 255)):
        (tmp_path / name).mkdir()
        for number in range(40):
            grey = level if number % 8 else 255 - level  # some are wrong
            (tmp_path / name / f"{number:02}.png").write_bytes(picture(grey))
    return tmp_path


def engine_for(photos: Path) -> Linear:
    task = ClassifyConfig().build(None, open_whole(photos).schema)
    return Linear(task, preprocess=Preprocess(image_size=(8, 8), channels=1))


def test_broken_images_are_skipped_and_counted(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = engine_for(photos)
    for number in (3, 4, 5):
        (photos / "dark" / f"{number:02}.png").write_bytes(b"not an image")
    calibrate(engine, open_whole(photos, schema=engine.task.schema))
    assert "77 images" in engine.task.calibration()
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["count"] == 3


def test_too_few_images_are_logged(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = engine_for(photos)
    for file in photos.glob("*/[123]*.png"):
        file.unlink()
    calibrate(engine, open_whole(photos, schema=engine.task.schema))
    assert "unchanged" in capsys.readouterr().err


def test_nothing_that_can_be_read(photos: Path) -> None:
    engine = engine_for(photos)
    for file in photos.glob("*/*.png"):
        file.write_bytes(b"not an image")
    with pytest.raises(DataError, match="none"):
        calibrate(engine, open_whole(photos, schema=engine.task.schema))
