"""The answer of a depth model: a distance for each pixel."""

import base64
import io
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.data.targets.depth_target import UNITS
from vitrail.data.targets.drawing import draw_depth
from vitrail.data.targets.pixel_files import stretch
from vitrail.tasks.answer import Answer, AnswerFile, Bar

COLUMNS = ("nearest", "median", "farthest")
_LEVELS = 65_535  # of a 16-bit PNG
_NEAREST = 0.05  # metres: in millimetres, nearer ones would be rounded by more than 1 %


@dataclass(frozen=True)
class DepthAnswer(Answer):
    """Distances of all pixels, row by row, at the size of the model's input, or of the picture once `placed`.

    A distance of 0 is unknown: the pixel is not part of the model's input.
    """

    kind: ClassVar[str] = "depth"
    has_position: ClassVar[bool] = True
    size: tuple[int, int]
    pixels: bytes  # float32

    @classmethod
    def of(cls, depth: Tensor) -> "DepthAnswer":
        """From distances H W."""
        rows = depth.float().cpu().contiguous()
        return cls((rows.shape[0], rows.shape[1]), rows.numpy().tobytes())

    @property
    def depth(self) -> Tensor:
        """Distances H W, float32."""
        return torch.frombuffer(bytearray(self.pixels), dtype=torch.float32).view(self.size)

    @property
    def range(self) -> tuple[float, float, float]:
        """The least, the middle and the largest distance."""
        known = self.depth[self.depth > 0]
        if not len(known):
            return 0.0, 0.0, 0.0
        return float(known.min()), float(known.median()), float(known.max())

    def placed(self, maps: Tensor, size: tuple[int, int]) -> "DepthAnswer":
        """At the size of the picture: each pixel has the distance of the nearest one."""
        return replace(self, size=size, pixels=stretch(self.depth, maps, size, 0.0).numpy().tobytes())

    def to_json(self) -> dict[str, Any]:
        """The range, and the map as a PNG of 16 bits whose largest level is the farthest distance."""
        nearest, median, farthest = self.range
        levels = (self.depth / max(farthest, 1e-12) * _LEVELS).round().clamp(0, _LEVELS).numpy().astype(np.uint16)
        ends = {"nearest": round(nearest, 6), "median": round(median, 6), "farthest": round(farthest, 6)}
        return {**ends, "map": base64.b64encode(_png(levels)).decode("ascii")}

    def text(self) -> str:
        """The range."""
        nearest, median, farthest = self.range
        return f"{nearest:.3g} to {farthest:.3g}, median {median:.3g}"

    def row(self) -> dict[str, Any]:
        """The range."""
        return dict(zip(COLUMNS, self.range, strict=True))

    def bars(self) -> list[Bar]:
        """The range, as shares of the farthest distance."""
        values = zip(COLUMNS, self.range, strict=True)
        return [Bar(name, f"{value:.3g}", min(value / max(self.range[2], 1e-12), 1.0)) for name, value in values]

    def draw(self, image: Tensor) -> Tensor | None:
        """The image tinted by distance; None where it has another size."""
        return draw_depth(image, self.depth) if image.shape[1:] == self.size else None

    def to_file(self) -> AnswerFile:
        """A PNG of 16 bits in millimetres, 0 for unknown; the numbers as .npy where these are too coarse or too few."""
        nearest, _, farthest = self.range
        beside = {"depth_scale.txt": f"{UNITS:g}\n"}
        if farthest * UNITS <= _LEVELS and (nearest >= _NEAREST or farthest == 0):
            return AnswerFile(".png", _png((self.depth * UNITS).round().numpy().astype(np.uint16)), beside)
        file = io.BytesIO()
        np.save(file, self.depth.numpy())
        return AnswerFile(".npy", file.getvalue(), beside)


def _png(levels: "np.ndarray[Any, Any]") -> bytes:
    file = io.BytesIO()
    Image.fromarray(levels).save(file, "PNG")
    return file.getvalue()


SCHEMA = {
    "type": "object",
    "required": ["nearest", "median", "farthest", "map"],
    "properties": {
        **{name: {"type": "number"} for name in COLUMNS},
        "map": {
            "type": "string",
            "description": "a PNG of 16 bits in base64; 65535 is the farthest, 0 unknown",
        },
    },
}
