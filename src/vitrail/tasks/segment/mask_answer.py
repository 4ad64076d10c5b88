"""The answer of a segmenter: a class for each pixel."""

import base64
import io
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor

from vitrail.data.targets.drawing import as_rgb, class_colour, draw_classes, name_classes
from vitrail.data.targets.mask_target import IGNORE
from vitrail.data.targets.pixel_files import stretch
from vitrail.tasks.answer import Answer, AnswerFile, Bar

COLUMNS = ("label", "share", "classes")
_SHOWN = 4  # classes that a line of text names


@dataclass(frozen=True)
class MaskAnswer(Answer):
    """Class numbers of all pixels, row by row, at the size of the model's input, or of the picture once `placed`."""

    kind: ClassVar[str] = "mask"
    has_position: ClassVar[bool] = True
    names: tuple[str, ...]
    size: tuple[int, int]
    pixels: bytes

    @classmethod
    def of(cls, names: tuple[str, ...], classes: Tensor) -> "MaskAnswer":
        """From class numbers H W."""
        rows = classes.round().to(torch.uint8).cpu().contiguous()
        return cls(names, (rows.shape[0], rows.shape[1]), rows.numpy().tobytes())

    @property
    def classes(self) -> Tensor:
        """Class numbers H W, uint8."""
        return torch.frombuffer(bytearray(self.pixels), dtype=torch.uint8).view(self.size)

    def shares(self) -> list[tuple[int, float]]:
        """The classes that occur and their shares of the pixels, the largest first."""
        counts = torch.bincount(self.classes.flatten().long(), minlength=len(self.names))[: len(self.names)]
        found = [(number, count / counts.sum().item()) for number, count in enumerate(counts.tolist()) if count]
        return sorted(found, key=lambda one: -one[1])

    def placed(self, maps: Tensor, size: tuple[int, int]) -> "MaskAnswer":
        """At the size of the picture: each pixel has the class of the nearest one; what was cut off has none."""
        return replace(self, size=size, pixels=stretch(self.classes, maps, size, IGNORE).numpy().tobytes())

    def to_json(self) -> dict[str, Any]:
        """Classes with their shares, and the mask as a PNG of class numbers, 255 for none."""
        rows = [
            {"label": self.names[number], "index": number, "share": round(share, 6)} for number, share in self.shares()
        ]
        return {"classes": rows, "mask": base64.b64encode(_png(Image.fromarray(self.classes.numpy()))).decode("ascii")}

    def text(self) -> str:
        """The largest classes and their shares."""
        shares = [f"{self.names[number]} {100 * share:.1f} %" for number, share in self.shares()]
        more = [f"and {len(shares) - _SHOWN} more"] if len(shares) > _SHOWN else []
        return ", ".join(shares[:_SHOWN] + more) or "no class"

    def row(self) -> dict[str, Any]:
        """The largest class, and all with their shares."""
        shares = self.shares()
        label, share = (self.names[shares[0][0]], shares[0][1]) if shares else (None, None)
        return {"label": label, "share": share, "classes": [[self.names[number], part] for number, part in shares]}

    def bars(self) -> list[Bar]:
        """A bar for each class that occurs."""
        bars = [
            Bar(self.names[number], f"{100 * share:.1f} %", share, chosen=True, colour=class_colour(number))
            for number, share in self.shares()
        ]
        return bars or [Bar("no class", "")]

    def draw(self, image: Tensor) -> Tensor | None:
        """The image tinted by class; None where it has another size."""
        return draw_classes(image, self.classes, IGNORE) if image.shape[1:] == self.size else None

    def draw_named(self, image: Tensor) -> Tensor | None:
        """The same with the names of the classes."""
        drawn = self.draw(image)
        return None if drawn is None else name_classes(as_rgb(drawn), self.classes, self.names)

    def to_file(self) -> AnswerFile:
        """A PNG of class numbers, 255 for none, with a palette of the colours of `draw`; and the list of classes."""
        image = Image.fromarray(self.classes.numpy())
        colours = [(0, 0, 0) if number == IGNORE else class_colour(number) for number in range(IGNORE + 1)]
        image.putpalette(bytes(level for colour in colours for level in colour))
        return AnswerFile(".png", _png(image), {"classes.txt": "".join(f"{name}\n" for name in self.names)})


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


SCHEMA = {
    "type": "object",
    "required": ["classes", "mask"],
    "properties": {
        "classes": {
            "type": "array",
            "description": "classes that occur, the largest first",
            "items": {
                "type": "object",
                "required": ["label", "index", "share"],
                "properties": {
                    "label": {"type": "string"},
                    "index": {"type": "integer"},
                    "share": {"type": "number", "minimum": 0, "maximum": 1},
                },
            },
        },
        "mask": {"type": "string", "description": "a PNG of class numbers in base64, 255 for no class"},
    },
}
