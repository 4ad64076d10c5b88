"""The model that a run gets where none is named."""

from pathlib import Path

from PIL import Image
from support.small_data import grey_squares, photos

from vitrail.data.sources.opening import find
from vitrail.training.config import TrainConfig
from vitrail.training.first_model import Sampled, default_model, fresh_model, sample


def test_a_sample_takes_the_median_and_passes_over_broken_images() -> None:
    data = photos(40, size=32, broken=range(0, 40, 4))
    assert (sample(data).height, sample(data).grey) == (32, False)
    assert sample(grey_squares(8)).grey
    assert sample(photos(4, broken=range(4))) == Sampled(0, 0, grey=False)


def test_small_and_grey_images_get_a_model_for_them() -> None:
    notes: list[str] = []
    config, model = fresh_model(TrainConfig(), 5, Sampled(30, 28, grey=True), notes, named=False)
    assert config.model == "vit32_conv"
    assert (model.config.image_size, model.config.channels, model.config.num_classes) == ((28, 28), 1, 5)
    assert len(notes) == 2


def test_the_doctor_is_told_the_same(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(4):
            Image.new("RGB", (40, 40), (60 * number, 0, 0)).save(tmp_path / name / f"{number}.png")
    assert default_model(find(tmp_path).train) == ("vit32_conv", (40, 40))
    assert default_model(find(tmp_path).train, image_size=24) == ("vit32_conv", (24, 24))
