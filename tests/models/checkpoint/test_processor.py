"""Processors of checkpoints with a head: files old and new, what is refused, and one size for all."""

import json
from pathlib import Path

import pytest

from vitrail.data.own_size import Edges, Near, Within
from vitrail.errors import CheckpointError
from vitrail.models.checkpoint.headed.processor import Processing, read_processing


def processing(folder: Path, about: object, size: tuple[int, int] | None = None, **config: object) -> Processing:
    (folder / "config.json").write_text(json.dumps(config))
    if about is not None:
        (folder / "preprocessor_config.json").write_text(about if isinstance(about, str) else json.dumps(about))
    return read_processing(folder, size)


def test_a_file_of_old(tmp_path: Path) -> None:
    about = {"feature_extractor_type": "DetrFeatureExtractor", "size": 800, "max_size": 1333}
    found = processing(tmp_path, about, model_type="detr")
    assert found.own_size == Edges(shortest=800, longest=1333)
    assert found.preprocess.image_size == (800, 1066)
    assert found.preprocess.resize == "squash"


def test_the_class_is_told_by_the_model(tmp_path: Path) -> None:
    found = processing(tmp_path, {"size": {"height": 320, "width": 480}}, model_type="rt_detr")
    assert found.own_size is None
    assert found.preprocess.image_size == (320, 480)
    assert found.preprocess.statistics == ((0.0,) * 3, (1.0,) * 3)


@pytest.mark.parametrize(
    ("kind", "size", "own"),
    [
        ("detr", {"max_height": 200, "max_width": 300}, Within(height=200, width=300)),
        ("deformable_detr", {"shortest_edge": 200, "longest_edge": 333}, Edges(shortest=200, longest=333)),
        ("segformer", {"height": 64, "width": 64}, None),
        ("dpt", {"height": 64, "width": 64}, None),
    ],
)
def test_sizes(kind: str, size: dict[str, int], own: object, tmp_path: Path) -> None:
    assert processing(tmp_path, {"size": size}, model_type=kind).own_size == own


def test_depth_at_multiples(tmp_path: Path) -> None:
    about = {"size": {"height": 90, "width": 90}, "ensure_multiple_of": 32}
    assert processing(tmp_path, about, model_type="dpt").preprocess.image_size == (96, 96)
    kept = processing(tmp_path, {**about, "keep_aspect_ratio": True}, model_type="dpt")
    assert kept.own_size == Near(height=90, width=90, multiple=32)
    assert kept.preprocess.image_size == (96, 96)


def test_squares_in_windows_or_padded(tmp_path: Path) -> None:
    size = {"shortest_edge": 64, "longest_edge": None}
    found = processing(tmp_path, {"size": size, "do_split_image": True}, model_type="eomt")
    assert (found.windows, found.padded, found.preprocess.image_size) == (True, False, (64, 64))
    padded = processing(tmp_path, {"size": size, "do_pad": True}, model_type="eomt")
    assert padded.padded
    assert padded.own_size == Edges(shortest=64, longest=64)  # it must fit into the square


def test_without_a_file(tmp_path: Path) -> None:
    assert processing(tmp_path, None, model_type="dpt", image_size=64).preprocess.image_size == (64, 64)
    assert processing(tmp_path, None, model_type="detr").own_size == Edges(shortest=800, longest=1333)


def test_one_size_that_was_asked_for(tmp_path: Path) -> None:
    found = processing(tmp_path, {"size": {"shortest_edge": 800, "longest_edge": 1333}}, (96, 64), model_type="detr")
    assert found.own_size is None
    assert found.preprocess.image_size == (96, 64)


@pytest.mark.parametrize(
    ("about", "word"),
    [
        ({"do_resize": False}, "do_resize"),
        ({"pad_size": {"height": 9, "width": 9}}, "pad_size"),
        ({"size": {"shortest_edge": 10**6}}, "pixels"),
        ({"size": {"shortest_edge": "wide"}}, "pixels"),
        ({"size": {}}, "pixels"),
        ({"size": {"width": 64}}, "height"),
        ({"size": None}, "preprocessor_config"),
        ({"resample": 9}, "resample"),
        ({"image_mean": "grey"}, "preprocessor_config"),
        ({"image_std": [0, 0, 0]}, "std"),
        ({"image_processor_type": "YolosImageProcessor"}, "yolos"),
        ("{", "JSON"),
    ],
)
def test_refused(about: object, word: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"(?i){word}"):
        processing(tmp_path, about, model_type="detr")


def test_depth_that_is_cut(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="do_center_crop"):
        processing(tmp_path, {"do_center_crop": True}, model_type="dpt")
