"""Images in arrays: .npy and .npz files, and the idx files of the MNIST family."""

import gzip
import hashlib
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.dataset import Dataset, Found, Targets, digest, file_facts, target_digest
from vitrail.data.targets import ClassTarget, LabelsTarget, Schema, Target
from vitrail.errors import DataError
from vitrail.files import DAMAGED_ARRAY, open_regular, read_text

Array = np.ndarray[Any, Any]
CLASSES_FILE = "classes.txt"

# Names of the images and labels of a split; "{}" is the name of the split.
_PAIRS = (("{}_images", "{}_labels"), ("X_{}", "y_{}"), ("x_{}", "y_{}"))
_WHOLE = (("X", "y"), ("x", "y"), ("images", "labels"))
_NPY_SPLITS = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}
_IDX_LIMIT = 1 << 32  # bytes
MAX_CLASSES = 1_000_000  # that have numbers and no names
_PIECE = 1 << 24  # bytes
_IDX_PAIR = ("{}-images-idx3-ubyte", "{}-labels-idx1-ubyte")
_IDX_SPLITS = {"train": ("train",), "val": ("val",), "test": ("t10k", "test")}


class Arrays(Dataset):
    """Images of one size in an array, N H W, N H W C or N C H W; the array may be memory-mapped."""

    def __init__(
        self,
        images: Array,
        targets: Targets,
        schema: Schema,
        *,
        name: str,
        origin: str | None = None,
        files: Sequence[Path] = (),
    ) -> None:
        self.images, self.targets, self.schema, self.name = images, targets, schema, name
        self.origin = origin or name
        self.files = tuple(files)
        self._axis, self._white = _channel_axis(images.shape, self.origin), _white(images, self.origin)
        height = 2 if self._axis == 1 else 1
        self.size, self.array = (images.shape[height], images.shape[height + 1]), self._whole()

    def __len__(self) -> int:
        return len(self.images)

    def _whole(self) -> Tensor | None:
        """All images, uint8, N C H W, if they are in memory and need no conversion."""
        images = self.images
        if isinstance(images, np.memmap) or images.dtype != np.uint8:
            return None
        pixels = torch.from_numpy(images if images.flags.writeable else images.copy())
        pixels = pixels[:, None] if self._axis is None else pixels.permute(0, 3, 1, 2) if self._axis == 3 else pixels
        return pixels.contiguous() if pixels.shape[1] in (1, 3) else None

    def read(self, index: int) -> Tensor:
        """One image, uint8, C H W."""
        image = np.array(
            self.images[index]
        )  # a copy, because torch needs writable memory and memory maps are read-only
        if image.dtype != np.uint8:
            image = np.rint(image.astype(np.float64) * (255 / self._white)).astype(np.uint8)
        pixels = torch.from_numpy(image)
        if self._axis is None:
            pixels = pixels[None]  # H W -> 1 H W
        elif self._axis == 3:
            pixels = pixels.permute(2, 0, 1)  # H W C -> C H W
        return _over_white(pixels) if len(pixels) == 4 else pixels.contiguous()

    def where(self, index: int) -> str:
        """The position in the array."""
        return f"{self.origin}[{index}]"

    @property
    def fingerprint(self) -> str:
        """Names, sizes and dates of the files, or a checksum of an array without files; and the targets."""
        return digest([self.image_fingerprint, target_digest(self.schema, self.targets)])

    @property
    def image_fingerprint(self) -> str:
        """Names, sizes and dates of the files, or a checksum of an array without files."""
        if self.files:
            facts = [file_facts(path) for path in self.files]
        else:
            facts = [hashlib.sha256(np.ascontiguousarray(self.images).data).hexdigest()]
        return digest([*facts, str(self.images.shape)])


def _channel_axis(shape: tuple[int, ...], origin: str) -> int | None:
    """The axis of channels; None for grey images without one."""
    if len(shape) == 3:
        return None
    # If both could be channels: 1 and 3 are likelier than 4, and the last axis than the first.
    for some in ((1, 3), (4,)):
        for axis in (3, 1):
            if len(shape) == 4 and shape[axis] in some:
                return axis
    raise DataError(
        f"{origin} has the shape {' x '.join(map(str, shape))}; images must be N H W, N H W C or N C H W with "
        "C = 1, 3 or 4"
    )


def _white(images: Array, origin: str) -> int:
    """The value of white: that of the type, or 1 or 255 by the range of the array."""
    if images.dtype in (np.uint8, np.uint16, np.bool_):
        return {"uint8": 255, "uint16": 65535, "bool": 1}[images.dtype.name]
    low, high = (float(images.min()), float(images.max())) if images.size else (0.0, 0.0)
    if images.dtype.kind == "f" and low >= 0.0 and high <= 1.0:
        return 1
    if images.dtype.kind in "fiu" and low >= 0.0 and high <= 255.0:
        return 255
    raise DataError(
        f"{origin} holds {images.dtype} from {low:g} to {high:g}; store images as uint8 from 0 to 255, or as floats "
        "from 0 to 1"
    )


def _over_white(pixels: Tensor) -> Tensor:
    """4 H W -> 3 H W."""
    colour, alpha = pixels[:3].int(), pixels[3:].int()
    return ((colour * alpha + 255 * (255 - alpha) + 127) // 255).to(torch.uint8)


def array_labels(values: Array, origin: str, *, classes: Sequence[str] | None = None) -> Tensor:
    """Labels N int64, or N K float32, from an array of numbers; DataError if one is out of range."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.dtype.kind not in "iubf" or not np.array_equal(values, np.rint(values)):
        raise DataError(f"{origin} holds {values.dtype}; labels must be integers from 0")
    if values.ndim == 2:
        if not np.isin(values, (0, 1)).all():
            raise DataError(f"{origin} has the shape N K, so it must hold only 0 and 1, not {values.max():g}")
        return torch.from_numpy(values.astype(np.float32))
    if values.ndim != 1:
        raise DataError(f"{origin} has {values.ndim} dimensions; labels must be N, or N K for multi-label")
    bad = np.flatnonzero((values < 0) | (values >= (len(classes) if classes is not None else np.inf)))
    if len(bad):
        allowed = f"0 to {len(classes) - 1}" if classes is not None else "0 or more"
        raise DataError(f"{origin} has the label {values[bad[0]]:g} at {bad[0]}; labels must be {allowed}")
    return torch.from_numpy(values.astype(np.int64))


def array_target(labels: Tensor, classes: tuple[str, ...]) -> tuple[Targets, Schema]:
    """Targets and schema of labels N int64 (one class per image) or N K float32 (multi-label)."""
    target: Target = LabelsTarget(classes=classes) if labels.is_floating_point() else ClassTarget(classes=classes)
    return {target.field: labels}, {target.field: target}


def read_idx(path: Path) -> Array:
    """The array of an idx file of unsigned bytes, with or without gzip."""
    try:
        with open_regular(path) as raw, gzip.open(raw) if path.suffix == ".gz" else raw as file:
            head = file.read(4)
            if len(head) < 4 or head[:3] != b"\0\0\x08":
                raise DataError(f"{path} is not an idx file of bytes: it starts with {head.hex(' ') or 'no data'}")
            sides = file.read(4 * head[3])
            shape = struct.unpack(f">{head[3]}I", sides) if len(sides) == 4 * head[3] else ()
            data = _read_at_most(file, prod(shape) + 1) if shape and prod(shape) <= _IDX_LIMIT else b""
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}; download it again") from error
    if not shape or len(data) != prod(shape) or prod(filter(None, shape)) > _IDX_LIMIT:
        raise DataError(
            f"{path} is truncated or damaged: its {len(data):,} bytes do not fit {shape}; download it again"
        )
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


def _read_at_most(file: IO[bytes] | gzip.GzipFile, count: int) -> bytes:
    """Reads piece by piece: a header may claim more than the file has, and `read` would reserve all of it."""
    parts = []
    while count > 0 and (part := file.read(min(count, _PIECE))):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def looks_like_arrays(folder: Path) -> bool:
    """Whether a folder has image arrays with names that `read_arrays` knows."""
    return bool(_npy_pairs(_npy_names(folder)) or _idx_pairs(folder))


def read_arrays(path: Path, *, classes: Sequence[str] | None = None) -> Found:
    """The splits of a folder of .npy or idx files, of an .npz file, or of an .npy with its labels beside it."""
    if path.is_file() and path.suffix == ".npy":
        return _beside(path, classes)
    if path.is_file():
        return _from_pairs(path, _npz_pairs(path), classes, path.parent)
    if pairs := _npy_pairs(_npy_names(path)):
        files = {split: tuple(path / f"{stem}.npy" for stem in stems) for split, stems in pairs.items()}
        loaded = {split: (_load(images), _load(labels), images, labels) for split, (images, labels) in files.items()}
        return _from_pairs(path, loaded, classes, path)
    if idx := _idx_pairs(path):
        loaded = {
            split: (read_idx(images), read_idx(labels), images, labels) for split, (images, labels) in idx.items()
        }
        return _from_pairs(path, loaded, classes, path)
    raise DataError(
        f"{path} has no arrays with a known name: train_images.npy with train_labels.npy, X.npy with y.npy, or "
        "train-images-idx3-ubyte.gz with train-labels-idx1-ubyte.gz"
    )


_Loaded = Mapping[str, tuple[Array, Array, Path, Path]]  # split -> images, labels, and the files of both


def _from_pairs(path: Path, pairs: _Loaded, classes: Sequence[str] | None, beside: Path) -> Found:
    if "train" not in pairs:
        raise DataError(f"{path} has no training images; expected train_images and train_labels, or X and y")
    classes = classes if classes is not None else _class_names(beside)
    labels = {split: array_labels(pair[1], str(pair[3]), classes=classes) for split, pair in pairs.items()}
    names = tuple(classes) if classes is not None else _numbered(list(labels.values()))
    parts = {}
    for split, (images, _, image_file, label_file) in pairs.items():
        if len(images) != len(labels[split]):
            raise DataError(
                f"{image_file} has {len(images):,} images, but {label_file} has {len(labels[split]):,} labels"
            )
        if labels[split].ndim == 2 and labels[split].shape[1] != len(names):
            raise DataError(f"{label_file} has {labels[split].shape[1]} columns, but there are {len(names)} classes")
        files = [image_file, label_file] if image_file.exists() else [path]
        targets, schema = array_target(labels[split], names)
        parts[split] = Arrays(images, targets, schema, name=f"{path} ({split})", origin=str(image_file), files=files)
    sizes = ", ".join(f"{split} {len(part):,}" for split, part in parts.items())
    return Found(parts["train"], parts.get("val"), parts.get("test"), (f"{path} has arrays: {sizes} images.",))


def _numbered(labels: Sequence[Tensor]) -> tuple[str, ...]:
    """Class names for labels that are numbers."""
    highest = max(
        (part.shape[1] - 1 if part.ndim == 2 else int(part.max())) for part in labels if part.ndim == 2 or len(part)
    )
    return numbered_classes(highest)


def numbered_classes(highest: int) -> tuple[str, ...]:
    """Names of classes that are known by their numbers alone, up to the highest; DataError where that cannot be."""
    if highest >= MAX_CLASSES:
        raise DataError(
            f"the class number {highest:,} is too high: the most is {MAX_CLASSES:,}; number classes from 0 on"
        )
    return tuple(str(number) for number in range(highest + 1))


def _class_names(folder: Path) -> tuple[str, ...] | None:
    file = folder / CLASSES_FILE
    if not file.exists():
        return None
    try:
        return tuple(line.strip() for line in read_text(file).splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read as UTF-8 text: {error}") from error


def _load(path: Path) -> Array:
    try:
        with open_regular(path):  # a pipe is refused here, where numpy would wait for it
            return _array(np.load(path, mmap_mode="r", allow_pickle=False))
    except DAMAGED_ARRAY as error:
        raise DataError(f"{path} is not a readable array: {_first_line(error)}") from error


def _array(loaded: Any) -> Array:
    if not isinstance(loaded, np.ndarray) or loaded.ndim == 0:
        raise ValueError("it is not an array of images or labels")
    return loaded


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def _beside(path: Path, classes: Sequence[str] | None) -> Found:
    """Images, given by path, and the labels beside them."""
    for images, labels in (*_WHOLE, *((pair[0].format(s), pair[1].format(s)) for pair in _PAIRS for s in ("train",))):
        other = path.with_name(f"{labels}.npy")
        if path.stem == images and other.exists():
            pair = {"train": (_load(path), _load(other), path, other)}
            return _from_pairs(path, pair, classes, path.parent)
    raise DataError(
        f"{path} has no labels beside it; expected y.npy for X.npy, or train_labels.npy for train_images.npy"
    )


def _npy_names(folder: Path) -> set[str]:
    return {file.stem for file in folder.glob("*.npy")}


def _npy_pairs(names: set[str]) -> dict[str, tuple[str, str]]:
    """Split -> names of its images and labels."""
    found: dict[str, tuple[str, str]] = {}
    for split, aliases in _NPY_SPLITS.items():
        for images, labels in ((a.format(alias), b.format(alias)) for a, b in _PAIRS for alias in aliases):
            if images in names and labels in names:
                found.setdefault(split, (images, labels))
    if "train" not in found:
        for images, labels in _WHOLE:
            if images in names and labels in names:
                found.setdefault("train", (images, labels))
    return found


def _npz_pairs(path: Path) -> _Loaded:
    try:
        with open_regular(path) as file, np.load(file, allow_pickle=False) as archive:
            pairs = _npy_pairs(set(archive.files))
            # Paths inside the archive, for messages.
            return {
                split: (_array(archive[images]), _array(archive[labels]), path / images, path / labels)
                for split, (images, labels) in pairs.items()
            }
    except (*DAMAGED_ARRAY, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{path} is not a readable archive of arrays: {_first_line(error)}") from error


def _idx_pairs(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Split -> files of its images and labels; with a dash or a dot in the name, with or without gzip."""
    found: dict[str, tuple[Path, Path]] = {}
    for split, aliases in _IDX_SPLITS.items():
        for alias in aliases:
            files = [_idx_file(folder, pattern.format(alias)) for pattern in _IDX_PAIR]
            if files[0] is not None and files[1] is not None:
                found.setdefault(split, (files[0], files[1]))
    return found


def _idx_file(folder: Path, name: str) -> Path | None:
    options = (folder / f"{spelt}{end}" for spelt in (name, name.replace("-idx", ".idx")) for end in ("", ".gz"))
    return next((option for option in options if option.is_file()), None)
