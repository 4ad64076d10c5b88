"""How images are preprocessed: read from files beside weights, kept by `save` and `convert`, understood by peers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail
from vitrail.config import to_dict
from vitrail.data.preprocess import Preprocess
from vitrail.errors import CheckpointError, Notice, ResampledNotice
from vitrail.models.backbone import Backbone
from vitrail.models.checkpoint.pixels import read_preprocess

PIXELS = MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
OURS = Preprocess(image_size=(32, 32), mean=MEAN, std=STD, crop=0.9, resize="squash", interpolation="bilinear")
TINY = {"dim": 32, "depth": 1, "num_heads": 2, "image_size": 32, "num_classes": 2}


def find(path: Path) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    found = read_preprocess(path)
    return None if found is None else (found.mean, found.std)


def beside(folder: Path, name: str, about: Any) -> Path:
    (folder / name).write_text(about if isinstance(about, str) else json.dumps(about))
    return folder


FILES = {
    "ours": ("config.json", {"library": "vitrail", "preprocess": to_dict(OURS)}),
    "ours, long ago": ("config.json", {"library": "vitrail", "normalisation": {"mean": MEAN, "std": STD}}),
    "timm": ("config.json", {"architecture": "x", "pretrained_cfg": {"mean": MEAN, "std": STD}}),
    "timm, long ago": ("config.json", {"architecture": "x", "mean": MEAN, "std": STD}),
    "Hugging Face": ("preprocessor_config.json", {"do_normalize": True, "image_mean": MEAN, "image_std": STD}),
}


@pytest.mark.parametrize("who", FILES)
def test_files_that_describe_preprocessing(who: str, tmp_path: Path) -> None:
    assert find(beside(tmp_path, *FILES[who])) == PIXELS
    (tmp_path / "model.safetensors").touch()
    assert find(tmp_path / "model.safetensors") == PIXELS
    if who in ("a run", "ours"):
        assert read_preprocess(tmp_path) == OURS


def test_old_files_of_ours_have_the_size_of_their_model(tmp_path: Path) -> None:
    about = {"library": "vitrail", "normalisation": {"mean": [0.3], "std": [0.2]}}
    beside(tmp_path, "config.json", about | {"config": {"image_size": [48, 64], "channels": 1}})
    assert read_preprocess(tmp_path) == Preprocess(image_size=(48, 64), channels=1, mean=(0.3,), std=(0.2,))


def test_the_size_of_the_model_decides(tmp_path: Path) -> None:
    beside(tmp_path, *FILES["timm"])
    found = read_preprocess(tmp_path, image_size=(96, 96))
    assert found == Preprocess(image_size=(96, 96), mean=MEAN, std=STD, crop=0.875, resize="crop")


def test_files_that_do_not_tell(tmp_path: Path) -> None:
    assert find(tmp_path) is None
    beside(tmp_path, "config.json", {"architectures": ["ViTForImageClassification"]})
    assert find(beside(tmp_path, "preprocessor_config.json", {"do_resize": True})) is None


def test_the_model_type_tells_the_processor(tmp_path: Path) -> None:
    beside(tmp_path, "config.json", {"model_type": "dinov2"})
    found = read_preprocess(beside(tmp_path, "preprocessor_config.json", {"size": {"shortest_edge": 256}}))
    assert found is not None
    assert (found.image_size, found.resize, found.interpolation) == ((224, 224), "crop", "bicubic")


def test_pixels_that_were_left_as_they_are(tmp_path: Path) -> None:
    about = {"do_normalize": False, "image_mean": MEAN, "image_std": STD}
    assert find(beside(tmp_path, "preprocessor_config.json", about)) == ((0.0,), (1.0,))


@pytest.mark.parametrize(
    "about",
    [
        "{",
        "[]",
        {"mean": [0.5], "std": [0.0]},
        {"mean": "x", "std": [1]},
        {"mean": MEAN, "std": STD, "crop_mode": "x"},
        {"library": "vitrail", "preprocess": {"crop": "x"}},
    ],
)
def test_a_damaged_file_is_named(about: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        find(beside(tmp_path, "config.json", about))


@pytest.fixture
def model() -> Backbone:
    model = vitrail.create("vit_tiny_patch16", **TINY)
    model.preprocess = Preprocess(image_size=(32, 32), mean=MEAN, std=STD)
    return model


@pytest.mark.parametrize("name", ["folder", "folder/one.safetensors"])
def test_a_saved_model_keeps_them(name: str, model: Backbone, tmp_path: Path) -> None:
    vitrail.save(model, tmp_path / name)
    assert read_preprocess(tmp_path / name) == vitrail.load(tmp_path / name).preprocess == model.preprocess
    with pytest.warns(ResampledNotice):
        moved = vitrail.load(tmp_path / name, image_size=48).preprocess
    assert moved == Preprocess(image_size=(48, 48), mean=MEAN, std=STD)


def test_the_header_of_the_weights_goes_before_the_files_beside_them(model: Backbone, tmp_path: Path) -> None:
    beside(tmp_path, "config.json", {"library": "vitrail", "preprocess": {"mean": [0.1], "std": [0.2]}})
    silent = vitrail.create("vit_tiny_patch16", **TINY)
    assert find(vitrail.save(silent, tmp_path / "silent.safetensors")) == ((0.1,), (0.2,))
    assert find(vitrail.save(model, tmp_path / "one.safetensors")) == PIXELS


def test_weights_load_where_the_file_beside_them_is_damaged(model: Backbone, tmp_path: Path) -> None:
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    beside(tmp_path, "preprocessor_config.json", {"image_mean": "x", "image_std": [1]})
    with pytest.warns(Notice, match="preprocessed"):
        assert vitrail.load(tmp_path / "weights.pth", model=model.config).preprocess is None


@pytest.mark.parametrize("to", ["vitrail", "timm", "hf"])
def test_converted_weights_keep_them_and_come_back_with_them(to: Any, model: Backbone, tmp_path: Path) -> None:
    vitrail.save(model, tmp_path / "ours")
    vitrail.convert(tmp_path / "ours", tmp_path / "there", to=to)
    assert find(tmp_path / "there") == PIXELS
    vitrail.convert(tmp_path / "there", tmp_path / "back")
    back = vitrail.load(tmp_path / "back").preprocess
    assert back is not None
    assert (back.mean, back.std, back.image_size) == (MEAN, STD, (32, 32))


@pytest.mark.parametrize("to", ["vitrail", "timm", "hf"])
@pytest.mark.parametrize("resize", ["crop", "squash"])
@pytest.mark.parametrize("crop", [0.9, 1.0])
def test_converted_weights_keep_the_whole_preprocessing(
    to: Any, resize: Any, crop: float, model: Backbone, tmp_path: Path
) -> None:
    model.preprocess = Preprocess(
        image_size=(32, 32), mean=MEAN, std=STD, crop=crop, resize=resize, interpolation="bilinear"
    )
    vitrail.save(model, tmp_path / "ours")
    vitrail.convert(tmp_path / "ours", tmp_path / "there", to=to)
    found = vitrail.load(tmp_path / "there").preprocess
    assert found is not None
    assert (found.resize, found.interpolation, found.statistics) == (resize, "bilinear", PIXELS)
    assert int(32 / found.crop) == int(32 / crop)


def test_peers_normalise_converted_weights_alike(model: Backbone, tmp_path: Path) -> None:
    from support.peers import timm, transformers

    model.preprocess = Preprocess(image_size=(32, 32), mean=(0.4,), std=(0.3,))  # one for all channels
    vitrail.save(model, tmp_path / "ours")
    for to in ("timm", "hf"):
        vitrail.convert(tmp_path / "ours", tmp_path / to, to=to)
    config = timm.data.resolve_model_data_config(timm.create_model(f"local-dir:{tmp_path / 'timm'}"))
    assert [config[key] for key in ("mean", "std", "input_size")] == [[0.4] * 3, [0.3] * 3, [3, 32, 32]]
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "hf")
    image = torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8)
    pixels = processor(image, return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(pixels, (image / 255 - 0.4) / 0.3)


def test_what_a_folder_held_before_is_not_taken_for_the_new_weights(tmp_path: Path) -> None:
    vitrail.save(vitrail.create("vit_tiny_patch16", **TINY), tmp_path / "ours")
    (tmp_path / "out").mkdir()
    beside(tmp_path / "out", "preprocessor_config.json", {"image_mean": MEAN, "image_std": STD})
    with pytest.raises(CheckpointError, match="normalised"):
        vitrail.convert(tmp_path / "ours", tmp_path / "out", to="hf")


def test_a_fault_of_the_machine_is_not_a_file_without_preprocessing(
    model: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("unable to open file: Too many open files (24)")

    vitrail.save(model, tmp_path)
    monkeypatch.setattr("vitrail.models.checkpoint.pixels.safe_open", fails)
    with pytest.raises(CheckpointError, match="Too many"):
        read_preprocess(tmp_path)
