"""Small data on disk for every kind of target: what a task is trained on in its contract suite.

A new kind of target needs one maker here; every task that learns from it is then tested with it.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

COUNT = 96
UNLABELLED = "none"  # for tasks that read no labels
SEVERAL = "several"  # for tasks that learn from several targets


def _picture(chance: np.random.Generator, x: float, y: float, level: float) -> Image.Image:
    """A soft blob at x, y (0 to 1) of some brightness on a noisy background, 32 x 32 in colour."""
    rows, columns = np.mgrid[0:32, 0:32] / 31
    blob = level * np.exp(-((rows - y) ** 2 + (columns - x) ** 2) / 0.02)  # H W
    pixels = np.clip(blob[..., None] + chance.normal(20, 4, (32, 32, 3)), 0, 255)
    return Image.fromarray(pixels.astype(np.uint8))


def blobs(folder: Path, count: int, *, seed: int = 0) -> list[tuple[str, float, float]]:
    """Writes pictures of blobs; the path, position and brightness of each."""
    chance = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number in range(count):
        x, y, level = chance.uniform(0.15, 0.85), chance.uniform(0.3, 0.7), chance.uniform(60, 230)
        _picture(chance, x, y, level).save(folder / f"{number:04d}.png")
        rows.append((f"{folder.name}/{number:04d}.png", x, level))
    return rows


def class_folders(folder: Path) -> Path:
    """Blobs on the left and on the right, a folder for each class."""
    chance = np.random.default_rng(0)
    for number in range(COUNT):
        side = number % 2
        place = folder / "data" / ("left", "right")[side]
        place.mkdir(parents=True, exist_ok=True)
        _picture(chance, 0.25 + 0.5 * side, 0.5, 200).save(place / f"{number}.png")
    return folder / "data"


def labels_table(folder: Path) -> Path:
    """A table of blobs with any of two labels, or none."""
    rows = blobs(folder / "images", COUNT)
    cells = [
        "|".join(name for name, has in (("right", x > 0.5), ("light", level > 145)) if has) for _, x, level in rows
    ]
    text = "".join(f"{path},{cell}\n" for (path, _, _), cell in zip(rows, cells, strict=True))
    table = folder / "table.csv"
    table.write_text(f"path,labels\n{text}")
    return table


def numbers_table(folder: Path, *, count: int = COUNT, seed: int = 0, name: str = "table.csv") -> Path:
    """A table of blobs with their position and brightness."""
    rows = blobs(folder / Path(name).stem, count, seed=seed)
    table = folder / name
    table.write_text("path,x,level\n" + "".join(f"{path},{x:.5f},{level:.3f}\n" for path, x, level in rows))
    return table


def boxes_table(folder: Path) -> Path:
    """A table of blobs with a box around each, of two classes: dim and bright."""
    rows = blobs(folder / "images", COUNT, seed=1)
    lines = []
    for path, x, level in rows:
        y = _brightest_row(folder / path)
        left, top = 31 * x - 4, 31 * y - 4
        lines.append(f"{path},{left:.1f} {top:.1f} {left + 8:.1f} {top + 8:.1f} {'bright' if level > 145 else 'dim'}")
    table = folder / "table.csv"
    table.write_text("path,boxes\n" + "\n".join(lines))
    return table


def _brightest_row(path: Path) -> float:
    """Where the blob is, from the top: 0 to 1."""
    return float(np.asarray(Image.open(path).convert("L")).sum(axis=1).argmax() / 31)


def _pixels_table(folder: Path, name: str) -> Path:
    """A table of blobs with a file of what is true of each pixel."""
    rows = blobs(folder / "images", COUNT)
    (folder / name).mkdir()
    lines = []
    for path, x, level in rows:
        columns = np.broadcast_to(np.arange(32) / 31, (32, 32))
        near = np.abs(columns - x) < 0.2
        pixels = near.astype(np.uint8) if name == "mask" else np.where(near, 1000 + 10 * level, 5000).astype(np.uint16)
        Image.fromarray(pixels).save(folder / name / Path(path).name)
        lines.append(f"{path},{name}/{Path(path).name}")
    table = folder / "table.csv"
    table.write_text(f"path,{name}\n" + "\n".join(lines))
    return table


def mask_table(folder: Path) -> Path:
    """Blobs with a mask each: the columns around the blob are of a class of their own."""
    return _pixels_table(folder, "mask")


def depth_table(folder: Path) -> Path:
    """Blobs with a depth map each: what is around the blob is near, the brighter the farther."""
    return _pixels_table(folder, "depth")


def several_table(folder: Path) -> Path:
    """Blobs with a side, a box, a mask and a depth map each; of four images, each lacks another one of these."""
    pixels = [_pixels_table(folder, name).read_text().splitlines()[1:] for name in ("mask", "depth")]
    lines = []
    for number, (path, x, level) in enumerate(blobs(folder / "images", COUNT)):
        left, top = 31 * x - 4, 31 * _brightest_row(folder / path) - 4
        box = f"{left:.1f} {top:.1f} {left + 8:.1f} {top + 8:.1f} {'bright' if level > 145 else 'dim'}"
        cells = ["right" if x > 0.5 else "left", box, *(of[number].split(",")[1] for of in pixels)]
        cells[number % 4] = "?" if number % 4 == 1 else ""
        lines.append(",".join([path, *cells]))
    table = folder / "table.csv"
    table.write_text("path,label,boxes,mask,depth\n" + "\n".join(lines))
    return table


def flat_folder(folder: Path) -> Path:
    """Blobs without labels."""
    blobs(folder / "images", COUNT)
    return folder / "images"


MAKERS: dict[str, Callable[[Path], Path]] = {
    "boxes": boxes_table,
    "class": class_folders,
    "depth": depth_table,
    "labels": labels_table,
    "mask": mask_table,
    "numbers": numbers_table,
    UNLABELLED: flat_folder,
    SEVERAL: several_table,
}
