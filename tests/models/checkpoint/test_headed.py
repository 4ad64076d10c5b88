"""Checkpoints with a head: strict reading, what is refused, and tasks that are ready for use."""

import json
from pathlib import Path

import numpy as np
import pytest
from parity.head_cases.detect import CASES
from safetensors.torch import load_file, save_file
from support.peers import transformers

import vitrail
from vitrail.errors import CheckpointError, Unsupported, VitrailError
from vitrail.models.checkpoint import WITH_HEADS
from vitrail.models.checkpoint.families import TRANSLATIONS
from vitrail.models.checkpoint.headed import TRANSLATIONS as HEADED
from vitrail.models.checkpoint.headed import dpt, has_head, load_headed
from vitrail.models.checkpoint.headed.processor import _own_size
from vitrail.models.checkpoint.headed.translation import convolutional, require


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("detr")
    transformers.logging.disable_progress_bar()
    model = CASES[0].make()
    model.config.id2label = {0: "cat", 1: "dog", 2: "eel"}
    model.save_pretrained(folder)
    return folder


def copy_of(saved: Path, folder: Path, **changes: object) -> Path:
    """The same checkpoint with other entries of config.json."""
    about = json.loads((saved / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**about, **changes}))
    save_file(load_file(saved / "model.safetensors"), folder / "model.safetensors")
    return folder


def test_is_recognised_by_its_class(saved: Path, tmp_path: Path) -> None:
    assert has_head(saved)
    assert has_head(saved / "model.safetensors")
    assert not has_head(copy_of(saved, tmp_path, architectures=["DetrForSegmentation"]))
    assert not has_head(tmp_path / "nothing")
    (tmp_path / "config.json").write_text("no JSON")
    assert not has_head(tmp_path)


def test_a_plain_model_is_not_loaded_of_it(saved: Path) -> None:
    with pytest.raises(CheckpointError, match=r"vitrail\.open"):
        vitrail.load(saved)
    assert set(WITH_HEADS) == {each.architecture for each in HEADED}


def test_names_of_classes(saved: Path) -> None:
    found = load_headed(saved)
    assert found.labels == ("cat", "dog", "eel")
    assert found.task == "detect"


def test_a_missing_tensor_is_named(saved: Path, tmp_path: Path) -> None:
    folder = copy_of(saved, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors["class_labels_classifier.bias"]
    tensors["another"] = tensors["class_labels_classifier.weight"].clone()
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="missing") as caught:
        load_headed(folder)
    assert all(name in str(caught.value) for name in ("another", "class_labels_classifier.bias"))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"model_type": "yolos"}, "yolos"),
        ({"dilation": True}, "dilat"),
        ({"activation_function": "gelu"}, "activation_function"),
        ({"decoder_ffn_dim": 64}, "decoder_ffn_dim"),
        ({"position_embedding_type": "learned"}, "position_embedding_type"),
        ({"backbone_config": {"model_type": "regnet"}}, "regnet"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_supported_is_named(saved: Path, tmp_path: Path, change: dict[str, object], word: str) -> None:
    with pytest.raises(Unsupported, match=word):
        load_headed(copy_of(saved, tmp_path, **change))


def test_the_backbone_of_timm_is_named() -> None:
    assert convolutional({"backbone": "resnet34", "use_timm_backbone": True})["architecture"] == "resnet34"
    assert convolutional({})["architecture"] == "resnet50"
    require({"a": 1}, a=1, b=2)


def test_open_gives_a_task(saved: Path, tmp_path: Path) -> None:
    about = {"image_processor_type": "DetrImageProcessor", "image_mean": [0.1] * 3, "image_std": [0.2] * 3}
    folder = copy_of(saved, tmp_path)
    (folder / "preprocessor_config.json").write_text(json.dumps(about | {"size": {"shortest_edge": 48}}))
    model = vitrail.open(folder)
    assert model.preprocess.image_size == (48, 64)
    assert model.preprocess.mean == (0.1, 0.1, 0.1)
    model.task.load_state({"threshold": 0.0})
    (answer,) = model.predict(np.zeros((30, 40, 3), dtype=np.uint8))
    assert len(answer.answer.boxes) == 7
    assert max(answer.answer.boxes[0].corners) <= 40


def test_every_dialect_has_a_name_of_its_own() -> None:
    assert len({each.name for each in TRANSLATIONS}) == len(TRANSLATIONS)


@pytest.mark.parametrize(
    "change",
    [
        {"encoder_layers": 10**9},
        {"decoder_layers": 10**9},
        {"d_model": 10**15},
        {"num_queries": 10**6},
        {"id2label": None, "num_labels": 10**9},
        {"encoder_layers": "many"},
        {"dropout": "much"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_small_file_cannot_ask_for_a_large_model(saved: Path, tmp_path: Path, change: dict[str, object]) -> None:
    with pytest.raises(VitrailError) as caught:
        load_headed(copy_of(saved, tmp_path, **change))
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("text", ["[" * 100_000, '{"model_type": []}', '{"model_type": "detr", "architectures": 5}'])
def test_a_config_that_names_no_head(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert not has_head(tmp_path)


@pytest.mark.parametrize(
    "about",
    [
        {"size": {"height": 10**9, "width": 10**9}},
        {"size": {"shortest_edge": "wide"}},
        {"size": {"height": 64}},
        {"image_mean": ["a"]},
    ],
    ids=lambda about: next(iter(about)),
)
def test_a_processor_that_makes_no_sense(saved: Path, tmp_path: Path, about: dict[str, object]) -> None:
    folder = copy_of(saved, tmp_path)
    (folder / "preprocessor_config.json").write_text(json.dumps(about))
    with pytest.raises(VitrailError):
        vitrail.open(folder)


@pytest.mark.parametrize("multiple", [0.5, -32, 10**9, "32"])
def test_a_multiple_that_is_no_number_of_pixels_is_refused(multiple: object) -> None:
    with pytest.raises(ValueError, match="ensure_multiple_of"):
        _own_size({"height": 64, "width": 64}, {"ensure_multiple_of": multiple}, "dpt")


def test_layers_that_are_not_numbers() -> None:
    with pytest.raises(TypeError, match="integer"):  # load_headed names the file
        dpt.DPT.head({"backbone_out_indices": [0, [1], 2, 3]})
