"""Models to look into: by name, by run, by what ships with the package, at another size."""

import json
from pathlib import Path

import pytest
import torch
from registered import tiny

import vitrail
from vitrail.cli.opening import is_name, open_model, open_task
from vitrail.errors import Notice, ResampledNotice
from vitrail.models.registry import presets


def test_a_name_gives_the_same_random_weights_and_leaves_the_generator_alone() -> None:
    state = torch.random.get_rng_state()
    with pytest.warns(Notice, match="levit_128s is the name of a model: its weights are random"):
        first, again = (open_model("levit_128s").model.state_dict() for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(again[name], values) for name, values in first.items())


def test_a_folder_of_that_name_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(is_name(name) for name in presets())
    monkeypatch.chdir(tmp_path)
    vitrail.save(tiny(num_classes=3), tmp_path / "levit_128s")
    assert not is_name("levit_128s")
    assert open_model("levit_128s").model.config.num_classes == 3


def test_images_are_normalised_as_the_files_beside_the_weights_tell(tmp_path: Path) -> None:
    vitrail.save(tiny(), tmp_path)
    grey = torch.full((1, 3, 24, 16), 51, dtype=torch.uint8)  # a fifth of the way from black to white
    for mean, expected in ((None, -0.6), (0.2, 0.0), (0.1, 0.2)):
        if mean is not None:
            told = {"image_mean": [mean] * 3, "image_std": [0.5] * 3}
            (tmp_path / "preprocessor_config.json").write_text(json.dumps(told))
        for opened in (open_model(str(tmp_path)), open_task(str(tmp_path))):
            torch.testing.assert_close(opened.prepare(grey), torch.full((1, 3, 24, 16), expected))


def test_the_packaged_model_says_what_it_is() -> None:
    with pytest.warns(Notice, match="trained on cifar10"):
        task = open_task("packaged")
    images = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    assert torch.equal(task.prepare(images), open_model("packaged").prepare(images))


def test_another_size(tmp_path: Path) -> None:
    vitrail.save(tiny(), tmp_path / "model")
    for kind in (open_model, open_task):
        with pytest.warns(ResampledNotice):
            opened = kind(str(tmp_path / "model"), image_size=(48, 32))
        assert opened.prepare(torch.zeros(1, 3, 9, 9, dtype=torch.uint8)).shape == (1, 3, 48, 32)


@pytest.mark.parametrize("name", ["mixer_s32", "vit32_small"])
def test_a_name_is_built_for_another_size(name: str) -> None:
    with pytest.warns(Notice, match="its weights are random"):
        model = open_model(name, image_size=64).model
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, model.config.num_classes)
