"""Small folders of images with boxes, masks and depth, in each format."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIZE = (40, 30)  # width, height


def picture(path: Path, size: tuple[int, int] = SIZE) -> Path:
    """A grey image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, 90).save(path)
    return path


def voc_object(label: str, box: Sequence[Any], extra: str = "") -> str:
    """An object of an XML file: xmin ymin xmax ymax."""
    sides = "".join(
        f"<{name}>{value}</{name}>" for name, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
    )
    return f"<object>\n<name>{label}</name>{extra}\n<bndbox>{sides}</bndbox>\n</object>\n"


def voc_file(path: Path, image: str, objects: str, size: tuple[int, int] = SIZE) -> Path:
    """An XML file for an image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    width, height = size
    path.write_text(
        f"<annotation>\n<filename>{image}</filename>\n<size><width>{width}</width><height>{height}</height></size>\n"
        f"{objects}</annotation>\n"
    )
    return path


def voc(root: Path, count: int = 6, *, split: bool = True) -> Path:
    """Images 0 .. count-1 with a box of "cell" each and "disc" in every second one."""
    names = []
    for number in range(count):
        picture(root / "JPEGImages" / f"{number}.png")
        objects = voc_object("cell", (2 + number, 3, 20 + number, 25))
        objects += voc_object("disc", (1, 1, 9, 9)) if number % 2 == 0 else ""
        voc_file(root / "Annotations" / f"{number}.xml", f"{number}.png", objects)
        names.append(str(number))
    if split:
        lists = root / "ImageSets" / "Main"
        lists.mkdir(parents=True)
        for name, part in {"train": names[: count - 2], "val": names[-2:-1], "test": names[-1:]}.items():
            (lists / f"{name}.txt").write_text("\n".join(part) + "\n")
    return root


def coco_annotation(number: int, image: int, box: Sequence[float], category: int = 1, **more: Any) -> dict[str, Any]:
    """An annotation: x y width height."""
    return {"id": number, "image_id": image, "category_id": category, "bbox": list(box), "iscrowd": 0, **more}


def coco_file(
    path: Path, images: Sequence[str], annotations: Sequence[Any], change: Mapping[str, Any] | None = None
) -> Path:
    """A JSON file for images with the ids 0, 1, ..., of the categories 1 cell and 3 disc; `change` replaces parts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = [{"id": at, "file_name": name, "width": SIZE[0], "height": SIZE[1]} for at, name in enumerate(images)]
    categories = [{"id": 3, "name": "disc"}, {"id": 1, "name": "cell"}]
    data = {"images": entries, "annotations": list(annotations), "categories": categories} | dict(change or {})
    path.write_text(json.dumps(data))
    return path


def coco(root: Path, count: int = 4) -> Path:
    """train2017 and val2017 with a box in each image."""
    for split in ("train", "val"):
        names = [f"{split}{number}.png" for number in range(count)]
        for name in names:
            picture(root / f"{split}2017" / name)
        boxes = [coco_annotation(number, number, (2, 3, 10, 12)) for number in range(count)]
        coco_file(root / "annotations" / f"instances_{split}2017.json", names, boxes)
    return root


def yolo(root: Path, labels: Mapping[str, str] | None = None) -> Path:
    """images/train, images/val with a text file each and a data.yaml; `labels` replaces texts by name."""
    for split in ("train", "val"):
        for number in range(4):
            name = f"{split}{number}"
            picture(root / "images" / split / f"{name}.png")
            file = root / "labels" / split / f"{name}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text((labels or {}).get(name, f"{number % 2} 0.5 0.5 0.5 0.2\n"))
    (root / "data.yaml").write_text("path: .\ntrain: images/train\nval: images/val\nnames:\n  0: cell\n  1: disc\n")
    return root


def masks(root: Path, image_folder: str = "images", mask_folder: str = "masks", *, count: int = 4) -> Path:
    """Images with a mask each of the classes 0, 1 and 2, and ignored pixels."""
    for number in range(count):
        picture(root / image_folder / f"{number}.png")
        pixels = np.zeros(SIZE[::-1], np.uint8)
        pixels[: 5 + number], pixels[-4:], pixels[10:12] = 1, 2, 255
        (root / mask_folder).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(root / mask_folder / f"{number}.png")
    return root


def depth(root: Path, *, count: int = 4) -> Path:
    """Images with a depth map each, in millimetres."""
    for number in range(count):
        picture(root / "images" / f"{number}.png")
        (root / "depth").mkdir(parents=True, exist_ok=True)
        pixels = np.full(SIZE[::-1], 1500 + 100 * number, np.uint16)
        Image.fromarray(pixels).save(root / "depth" / f"{number}.png")
    return root
