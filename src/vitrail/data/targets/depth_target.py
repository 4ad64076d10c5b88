"""The distance of each pixel: depth estimation."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from vitrail.data.decode import MAX_PIXELS, decode_values
from vitrail.data.render.numbered import truth_of
from vitrail.data.targets.drawing import draw_depth
from vitrail.data.targets.exr_file import read_exr
from vitrail.data.targets.mask_target import in_threads, pixel_paths
from vitrail.data.targets.pixel_files import has_file, head_of, move_pixels, path_of, references
from vitrail.data.targets.target import Audit, Column, Read, Target
from vitrail.errors import BrokenImage
from vitrail.files import DAMAGED_ARRAY, read_bytes
from vitrail.report import Table, Value

SUFFIXES = (".png", ".npy", ".exr", ".tif", ".tiff", ".pfm")
UNITS = 1000.0  # per metre, of files that store whole numbers: millimetres
_SCALE = struct.Struct("<d")
_SAMPLES = 200  # maps that an audit reads


@dataclass(frozen=True, kw_only=True)
class DepthTarget(Target, kind="depth"):
    """Distances B H W float32 in batches, 0 for unknown; references to files in datasets."""

    field: ClassVar[str] = "depth"
    vague: ClassVar[int] = 1
    column_names: ClassVar[tuple[str, ...]] = ("depth", "depth_map")
    dense: ClassVar[torch.dtype | None] = torch.float32

    @classmethod
    def read(cls, columns: Sequence[Column]) -> Read:
        """Paths of depth maps, relative to the table's folder; "" for an image without one."""
        (column,) = columns
        paths = pixel_paths(column, "depth map")
        for row, path in enumerate(paths):
            if path is not None and path.suffix.lower() not in SUFFIXES:
                raise column.error(row, f"{path.name} is not a depth map; expected a file of {', '.join(SUFFIXES)}")
        return Read(cls(), depth_references(paths), ("a depth map each",))

    def describe(self) -> str:
        """What is learned."""
        return "depth maps"

    def load(self, value: Tensor) -> Tensor:
        """A reference L -> distances H W float32, 0 for unknown."""
        if (path := path_of(value, _SCALE.size)) is None:
            return torch.zeros(1, 1)
        if (rendered := truth_of(path)) is not None:
            return torch.from_numpy(rendered.depth.copy())
        return torch.from_numpy(read_depth(path, *_SCALE.unpack(head_of(value, _SCALE.size))))

    def unknown(self, like: Tensor) -> Tensor:
        """A reference to no file."""
        return torch.zeros_like(like[0])

    def known(self, values: Tensor) -> Tensor:
        """Images with a depth map: a file, or a pixel with a distance."""
        return has_file(values, _SCALE.size) if values.ndim == 2 else (values > 0).flatten(1).any(dim=1)

    def move(self, values: Tensor, maps: Tensor, size: tuple[int, int]) -> Tensor:
        """The distance of the nearest pixel, as two distances have no meaningful mean; unknown outside."""
        return move_pixels(values, maps, size, 0.0)

    def paste(self, values: Tensor, other: Tensor, region: Tensor, hidden: Tensor | None = None) -> Tensor:
        """The pixels of the other image in the region."""
        return torch.where(region, other, values)

    def text(self, value: Tensor) -> str:
        """The range and the median; the name of the file for a reference."""
        if value.ndim == 1:
            path = path_of(value, _SCALE.size)
            return "not annotated" if path is None else path.name
        known = value[value > 0]
        if not len(known):
            return "not annotated"
        return f"{float(known.min()):.3g} to {float(known.max()):.3g}, median {float(known.median()):.3g}"

    def draw(self, image: Tensor, value: Tensor) -> Tensor:
        """The image tinted by distance."""
        pixels = self.load(value) if value.ndim == 1 else value
        return draw_depth(image, pixels) if pixels.shape == image.shape[1:] else image

    def audit(self, parts: Mapping[str, Tensor]) -> Audit:
        """The range of distances per split, and the share of pixels that have one."""
        rows: list[dict[str, Value]] = []
        for split, values in parts.items():
            step = max(1, len(values) // _SAMPLES)
            found = [one for one in in_threads(self._range, values[::step]) if one is not None]
            low, middle, high, share = np.array(found).T if found else np.zeros((4, 1))
            rows.append({
                "split": split, "maps": len(values), "nearest": float(low.min()), "median": float(np.median(middle)),
                "farthest": float(high.max()), "known pixels": float(share.mean()),
            })  # fmt: skip
        units: dict[str, Any] = dict.fromkeys(("split", "maps", "nearest", "median", "farthest"), "")
        return Audit((Table("Depth", units | {"known pixels": "share"}, tuple(rows)),))

    def _range(self, value: Tensor) -> tuple[float, float, float, float] | None:
        """The least, middle and largest distance, and the share of known pixels; None if there are none."""
        try:
            pixels = self.load(value) if value.ndim == 1 else value
        except BrokenImage:
            return None
        known = pixels[pixels > 0]
        if not len(known):
            return None
        return float(known.min()), float(known.median()), float(known.max()), len(known) / pixels.numel()


def depth_references(paths: Sequence[Path | None], units: float = UNITS) -> Tensor:
    """References to depth maps: N L uint8. `units` per metre hold for whole numbers; floats are metres."""
    return references(paths, [_SCALE.pack(units)] * len(paths))


def read_depth(path: Path, units: float) -> "np.ndarray[Any, Any]":
    """The distances of a file, H W float32; what is not finite or not above 0 becomes 0."""
    try:
        data = read_bytes(path)
    except OSError as error:
        raise BrokenImage(f"{path} cannot be read: {error.strerror or error}") from error
    reader = {".npy": _read_npy, ".pfm": _read_pfm, ".exr": _read_exr}.get(path.suffix.lower())
    pixels = decode_values(data, name=str(path)) if reader is None else reader(data, path)
    whole = np.issubdtype(pixels.dtype, np.integer)
    metres = pixels.astype(np.float32) / (np.float32(units) if whole else np.float32(1))
    metres[~np.isfinite(metres) | (metres < 0)] = 0
    return metres


def _read_npy(data: bytes, path: Path) -> "np.ndarray[Any, Any]":
    try:
        pixels = np.load(BytesIO(data), allow_pickle=False)
    except DAMAGED_ARRAY as error:
        raise BrokenImage(f"{path} is not a valid .npy file: {error}") from error
    pixels = pixels.squeeze()
    if pixels.ndim != 2 or pixels.dtype.kind not in "fiu":
        raise BrokenImage(f"{path} has the shape {pixels.shape} of {pixels.dtype}; expected numbers H W")
    return np.asarray(pixels)


def _read_exr(data: bytes, path: Path) -> "np.ndarray[Any, Any]":
    try:
        return read_exr(data, MAX_PIXELS)
    except ValueError as error:
        raise BrokenImage(f"{path} cannot be read: {error}") from error


def _read_pfm(data: bytes, path: Path) -> "np.ndarray[Any, Any]":
    """Portable float map: three lines of text, then rows from the bottom up."""
    try:
        kind, sizes, scale, rest = data.split(b"\n", 3)
        width, height = map(int, sizes.split())
        order = "<" if float(scale) < 0 else ">"
        if kind.strip() != b"Pf" or not 0 < width * height <= MAX_PIXELS:
            raise ValueError("expected Pf and a size")
        return np.frombuffer(rest, f"{order}f4", width * height).reshape(height, width)[::-1]
    except ValueError as error:
        raise BrokenImage(f"{path} is not a valid .pfm file of one channel: {error}") from error
