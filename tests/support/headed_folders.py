"""Folders of Hugging Face's detectors, segmenters and depth models, tiny and random, with data for their tasks."""

from pathlib import Path
from typing import Any

from parity.processors import CASES, write
from torch import nn

from support.peers import transformers
from support.task_data import MAKERS

KINDS = {
    "DETR": "boxes", "Deformable DETR": "boxes", "RT-DETR": "boxes", "SegFormer": "mask", "EoMT, windows": "mask",
    "DPT": "depth",
}  # fmt: skip
_CLASSES = {"boxes": ["bright", "dim"], "mask": ["class 0", "class 1"]}


def headed_folder(name: str, folder: Path) -> tuple[Any, nn.Module]:
    """Writes the folder of a case of `parity.processors`; its classes are those of `labelled`, and some others."""
    transformers.logging.disable_progress_bar()
    case = next(case for case in CASES if case.name == name)
    processor, model = write(case, folder)
    if (classes := _CLASSES.get(KINDS[name])) is not None:
        count = model.config.num_labels
        names = [*classes, *(f"other {number}" for number in range(count))][:count]
        model.config.id2label = dict(enumerate(names))
        model.config.save_pretrained(folder)
    return processor, model


def labelled(name: str, folder: Path) -> Path:
    """A table of images with targets of the kind that a model finds."""
    folder.mkdir(parents=True, exist_ok=True)
    return MAKERS[KINDS[name]](folder)
