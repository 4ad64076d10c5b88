"""A tiny detector with random weights whose boxes are all above the threshold, and a picture for it."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

import vitrail
from support.registered import tiny
from vitrail.data.preprocess import Preprocess
from vitrail.data.targets.boxes_target import BoxesTarget
from vitrail.files import write_tensors
from vitrail.models.heads import DeformableDetrConfig
from vitrail.runs.record import Record, Result
from vitrail.runs.trained import BESIDE, TrainedModel, beside_model
from vitrail.tasks.detect import DetectConfig

SIZE = (120, 160)  # height and width of the picture


def detector(image_size: int = 64) -> TrainedModel:
    """Finds five boxes in every picture, at a size that no picture of a test has."""
    torch.manual_seed(0)
    head = DeformableDetrConfig(
        dim=16, num_heads=2, hidden=24, encoder_depth=1, decoder_depth=2, queries=6, levels=2, denoising=4
    )
    backbone = tiny("resnet18", num_classes=0, image_size=image_size)
    task = (
        DetectConfig(head=head, most=5).build(backbone, {"boxes": BoxesTarget(classes=("cat", "dog"), most=3)}).eval()
    )
    task.load_state({"threshold": 0.0})
    preprocess = Preprocess(image_size=backbone.config.image_size, resize="squash")
    return TrainedModel(source="runs/tiny", backbone=backbone, preprocess=preprocess, head=task)


def picture_file(folder: Path, name: str = "photo.png", seed: int = 0) -> Path:
    """A picture of SIZE."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*SIZE, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / name)
    return folder / name


def detector_folder(folder: Path) -> Path:
    """The same as the folder of a run."""
    model = detector()
    vitrail.save(model.backbone, folder)
    state = model.task.state_dict()
    write_tensors(folder / BESIDE, {name: state[name] for name in beside_model(model.task)}, {})
    Record(
        recipe={"model": "resnet18", "seed": 0},
        model={},
        task=model.task.config,
        schema=model.task.schema,
        preprocess=model.preprocess,
    ).write(folder)
    Result(metrics={"ap": 0.5, "images": 8.0}, state=model.task.state()).write(folder)
    return folder
