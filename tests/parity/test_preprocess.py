"""The same pixels as timm's evaluation transforms and Hugging Face's image processors, within one grey level."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.peers import timm, transformers
from torch import Tensor

from vitrail.data.preprocess import Preprocess
from vitrail.models.checkpoint.pixels import read_preprocess

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


@cache
def pictures() -> dict[str, Image.Image]:
    """Two photographs that scikit-learn ships, where it is installed, and a made one with hard edges and noise."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:427, :640]
    made = np.stack([255 * ((x // 37 + y // 23) % 2), 127 + 127 * np.sin(x * y / 900), y / 427 * 255], axis=-1)
    photo = Image.fromarray((made + rng.normal(0, 12, made.shape)).clip(0, 255).astype(np.uint8))
    photos = {"made": photo}
    try:
        from sklearn.datasets import load_sample_images

        photo, flower = (Image.fromarray(image) for image in load_sample_images().images)
        photos |= {"photograph": photo, "flower": flower}
    except ImportError:
        flower = photo
    return photos | {
        "tall": photo.crop((120, 0, 340, 427)),
        "wide": flower.crop((0, 100, 640, 163)),
        "odd": flower.resize((333, 251)),
        "tiny": photo.resize((37, 23)),
        "grey": flower.convert("L").convert("RGB"),
    }


def differences(preprocess: Preprocess, theirs: Any) -> dict[str, float]:
    """The pictures of which a pixel is more than one grey level from the peer's, and by how much."""
    wrong = {}
    std = torch.tensor(preprocess.statistics[1])[:, None, None]
    for name, picture in pictures().items():
        ours = preprocess(torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None])[0]
        found: Tensor = theirs(picture)
        assert found.shape == ours.shape
        difference = ((found - ours) * std * 255).abs().max().item()
        if difference > 1.001:
            wrong[name] = difference
    return wrong


@pytest.mark.parametrize("size", [224, (192, 256)], ids=str)
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("crop_pct", [0.875, 0.9, 0.95, 1.0])
@pytest.mark.parametrize("crop_mode", ["center", "squash", "border"])
def test_timm(crop_mode: str, crop_pct: float, interpolation: str, size: Any, tmp_path: Path) -> None:
    rows, columns = (size, size) if isinstance(size, int) else size
    options = {"crop_mode": crop_mode, "crop_pct": crop_pct, "interpolation": interpolation}
    config = {"input_size": [3, rows, columns], **options, **IMAGENET}
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "x", "pretrained_cfg": config}))
    preprocess = read_preprocess(tmp_path)
    assert preprocess is not None
    transform = timm.data.create_transform(**timm.data.resolve_data_config(pretrained_cfg=config), is_training=False)
    assert differences(preprocess, transform) == {}


def test_timm_at_the_size_of_its_tests(tmp_path: Path) -> None:
    config = {"input_size": [3, 160, 160], "test_input_size": [3, 224, 224], "crop_pct": 0.9, "test_crop_pct": 1.0}
    config |= {"interpolation": "bicubic", **IMAGENET}
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "x", "pretrained_cfg": config}))
    for tested, size in ((False, None), (True, (224, 224))):
        preprocess = read_preprocess(tmp_path, image_size=size)
        assert preprocess is not None
        data = timm.data.resolve_data_config(pretrained_cfg=config, use_test_size=tested)
        assert differences(preprocess, timm.data.create_transform(**data, is_training=False)) == {}


# The names of classes and what their files say; the published files of each model are of these kinds.
PROCESSORS = {
    "ViT": ("ViT", {}),
    "ViT, one number": ("ViT", {"size": 192}),
    "ViT, bicubic rectangle": ("ViT", {"size": {"height": 160, "width": 224}, "resample": 3}),
    "ViT, levels": ("ViT", {"do_rescale": False, "image_mean": [127.5] * 3, "image_std": [100.0] * 3}),
    "ViT, not normalised": ("ViT", {"do_normalize": False}),
    "ViT, Lanczos": ("ViT", {"resample": 1}),
    "Swin": ("ViT", {"resample": 3, "image_mean": IMAGENET["mean"], "image_std": IMAGENET["std"]}),
    "DeiT": ("DeiT", {"resample": 3}),
    "BEiT": ("Beit", {}),
    "BEiT, cropped": ("Beit", {"size": {"height": 256, "width": 256}, "do_center_crop": True}),
    "ConvNeXt": ("ConvNext", {"size": {"shortest_edge": 224}, "crop_pct": 0.875}),
    "ConvNeXt, one number": ("ConvNext", {"size": 256, "crop_pct": 0.95}),
    "ConvNeXt 384": ("ConvNext", {"size": {"shortest_edge": 384}}),
    "CvT": ("ConvNext", {"size": {"shortest_edge": 224}, "image_mean": IMAGENET["mean"], "image_std": IMAGENET["std"]}),
    "LeViT": ("Levit", {}),
    "PVT": ("Pvt", {}),
    "MobileViT": ("MobileViT", {"size": {"shortest_edge": 288}, "crop_size": {"height": 256, "width": 256}}),
    "MobileViT, padded": ("MobileViT", {}),
    "DINOv2": ("Bit", {"size": {"shortest_edge": 256}, "resample": 3}),
    "DINOv3": ("DINOv3ViT", {}),
    "CLIP": ("CLIP", {}),
    "SigLIP": ("Siglip", {}),
    "PoolFormer": ("PoolFormer", {}),
    "EfficientNet": ("EfficientNet", {}),
    "EfficientNet, nearest": ("EfficientNet", {"resample": 0, "size": {"height": 224, "width": 224}}),
    "EfficientNet, offset": ("EfficientNet", {"rescale_offset": True, "rescale_factor": 1 / 127.5}),
    "EfficientNet, cropped": ("EfficientNet", {"do_center_crop": True, "include_top": False}),
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_hugging_face(name: str, tmp_path: Path) -> None:
    kind, options = PROCESSORS[name]
    if options.get("resample") == 1 and torch.__version__.startswith("2.11."):
        pytest.skip("torch 2.11 has no lanczos")
    processor = getattr(transformers, f"{kind}ImageProcessor")(**options)
    processor.save_pretrained(tmp_path)
    preprocess = read_preprocess(tmp_path)
    assert preprocess is not None
    assert differences(preprocess, lambda picture: processor(picture, return_tensors="pt")["pixel_values"][0]) == {}


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_file_that_says_only_the_class(name: str, tmp_path: Path) -> None:
    kind, options = PROCESSORS[name]
    processor = getattr(transformers, f"{kind}ImageProcessor")(**options)
    about = {"feature_extractor_type": f"{kind}FeatureExtractor", **options}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(about))
    processor.save_pretrained(tmp_path / "whole")
    whole, found = read_preprocess(tmp_path / "whole"), read_preprocess(tmp_path)
    assert whole is not None
    assert found == whole
