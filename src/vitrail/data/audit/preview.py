"""A page of pictures with their targets drawn on them: boxes, masks, depth."""

from collections.abc import Iterator

import torch
from torch import Tensor

from vitrail.data.dataset import Dataset, Splits
from vitrail.data.preprocess import Preprocess
from vitrail.data.targets.drawing import as_rgb, legend
from vitrail.errors import BrokenImage, DataError
from vitrail.report import Gallery, Line, Report, Section, Shot, Text
from vitrail.report.images import data_uri

SHOWN = 24  # pictures
_SIDE = 480  # pixels of the longer side


def preview(splits: Splits, *, count: int = SHOWN) -> Report:
    """Pictures of each split, evenly spaced, with what is known of them; `count` in all."""
    parts = {"train": splits.train, "val": splits.val} | ({} if splits.test is None else {"test": splits.test})
    each = dict.fromkeys(parts, count // 4) | {"train": count - (len(parts) - 1) * (count // 4)}
    sections: list[Section] = [Text("Data", "\n".join(splits.notes))]
    if keys := list(_legends(splits.train)):
        sections.append(Gallery("Classes", "The colour of each class.", tuple(keys), large=True))
    for split, part in parts.items():
        shots = tuple(_shots(part, min(each[split], len(part))))
        text = f"{len(shots)} of {len(part):,} pictures, evenly spaced."
        sections.append(Gallery(f"Pictures of {split}", text, shots, large=True))
    return Report(f"Preview of {splits.train.name}", tuple(sections))


def _legends(dataset: Dataset) -> Iterator[Shot]:
    for target in dataset.schema.values():
        if target.kind in ("boxes", "mask"):
            names = getattr(target, "classes", ())
            yield Shot((data_uri(legend(names), largest=_SIDE),), (Line(target.describe(), "soft"),), ", ".join(names))


def _shots(dataset: Dataset, count: int) -> Iterator[Shot]:
    for at in range(count):
        index = at * len(dataset) // count
        where = dataset.where(index)
        try:
            picture, texts = drawn(dataset, index)
        except (BrokenImage, DataError) as error:
            yield Shot((data_uri(torch.zeros(3, 60, 80, dtype=torch.uint8)),), (Line(str(error), "bad"),), where)
            continue
        lines = tuple(Line(text) for text in texts)
        yield Shot((data_uri(picture, largest=_SIDE),), (*lines, Line(dataset.key(index), "soft")), where)


def drawn(dataset: Dataset, index: int) -> tuple[Tensor, list[str]]:
    """A picture of at most 480 pixels a side with all targets drawn on it, uint8 3 H W; and these as text."""
    image = as_rgb(dataset.read(index))[None]  # 1 3 H W
    height, width = image.shape[2:]
    share = min(1.0, _SIDE / max(height, width))
    size = (max(1, round(height * share)), max(1, round(width * share)))
    fitted, maps = Preprocess(image_size=size, resize="squash").fit(image)
    picture, texts = fitted[0], []
    for name, target in dataset.schema.items():
        value = target.load(dataset.targets[name][index])
        if target.dense is not None and value.numel() > 1 and tuple(value.shape) != (height, width):
            raise DataError(
                f"{dataset.where(index)} has {width} x {height} pixels, its {name} {value.shape[1]} x {value.shape[0]}"
            )
        value = target.move(value[None], maps, size)[0]
        picture = target.draw(picture, value)
        texts.append(target.text(value))
    return picture, texts
