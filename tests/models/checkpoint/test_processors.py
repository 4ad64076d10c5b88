"""Hugging Face's image processors: what is read from their files, what is written, and what is refused.

tests/parity/test_preprocess.py compares pixels.
"""

from typing import Any

import pytest

from vitrail.data.preprocess import Preprocess
from vitrail.errors import Notice
from vitrail.models.checkpoint.processors import PROCESSORS, read_processor, write_processor


@pytest.mark.parametrize(
    ("about", "word"),
    [
        ({"resample": 5}, "resample"),
        ({"size": {"longest_edge": 300}}, "size"),
        ({"do_resize": False, "do_center_crop": True}, "do_resize"),
        (
            {"size": {"shortest_edge": 256}, "do_center_crop": True, "crop_size": {"height": 224, "width": 192}},
            "square",
        ),
        ({"size": [256, 256], "do_center_crop": True, "crop_size": {"height": 224, "width": 192}}, "shapes"),
    ],
    ids=str,
)
def test_what_cannot_be_followed_is_refused(about: Any, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        read_processor({"image_processor_type": "ViTImageProcessor"} | about)


@pytest.mark.parametrize("name", ["ViTImageProcessor", "ViTImageProcessorFast", "ViTFeatureExtractor"])
def test_all_names_of_a_class_mean_the_same(name: str) -> None:
    expected = Preprocess(mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="bilinear", resize="squash", like="hf")
    assert read_processor({"image_processor_type": name}) == expected
    assert read_processor({}, "swin") == expected


def test_too_little_is_not_guessed() -> None:
    assert read_processor({"do_resize": True}) is None
    assert read_processor({"image_processor_type": "OtherImageProcessor"}) is None


def test_pictures_that_are_not_resized_have_the_size_already() -> None:
    found = read_processor({"image_processor_type": "ViTImageProcessor", "do_resize": False, "size": 64})
    assert found is not None
    assert (found.image_size, found.resize, found.crop) == ((64, 64), "squash", 1.0)


@pytest.mark.parametrize("kind", [kind for kind in PROCESSORS if kind != "mobilevit"])
def test_what_is_written_is_read_back(kind: str) -> None:
    preprocess = read_processor({"image_processor_type": f"{kind}ImageProcessor"})
    assert preprocess is not None
    again = read_processor(write_processor(preprocess))
    assert again is not None
    assert (again.image_size, again.resize, again.interpolation) == (
        preprocess.image_size,
        preprocess.resize,
        preprocess.interpolation,
    )
    assert again.crop == pytest.approx(preprocess.crop, rel=0.01)  # to whole pixels
    assert again.statistics == preprocess.statistics


@pytest.mark.parametrize("changes", [{"resize": "pad"}, {"image_size": (32, 48)}, {"channel_order": "bgr"}], ids=str)
def test_what_hugging_face_has_no_processor_for_is_said(changes: Any) -> None:
    with pytest.warns(Notice, match="Hugging Face"):
        write_processor(Preprocess(**changes))
