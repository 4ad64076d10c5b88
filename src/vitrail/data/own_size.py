"""The size of each picture where a model takes pictures of any size: the ratio of the sides is kept."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

Size = tuple[int, int]  # height, width


class OwnSize(ABC):
    """What a picture is resized to; the rounding is that of Hugging Face's processors."""

    @abstractmethod
    def of(self, height: int, width: int) -> Size:
        """The new height and width of a picture."""


@dataclass(frozen=True, kw_only=True)
class Edges(OwnSize):
    """The shorter side becomes `shortest` pixels, or fewer where the longer one would exceed `longest`."""

    shortest: int
    longest: int | None = None

    def of(self, height: int, width: int) -> Size:
        """The new height and width of a picture."""
        short, long = min(height, width), max(height, width)
        target: float = self.shortest
        if self.longest is not None and long / short * self.shortest > self.longest:
            target = self.longest * short / long
        rounded = round(target)
        if short == rounded:
            return height, width
        side = max(rounded, 1)
        return (int(target * height / width), side) if width < height else (side, int(target * width / height))


@dataclass(frozen=True, kw_only=True)
class Within(OwnSize):
    """As large as fits into a height and width."""

    height: int
    width: int

    def of(self, height: int, width: int) -> Size:
        """The new height and width of a picture."""
        scale = min(self.height / height, self.width / width)
        return max(int(height * scale), 1), max(int(width * scale), 1)


@dataclass(frozen=True, kw_only=True)
class Near(OwnSize):
    """The side that changes less gets its wanted length; both are rounded to multiples of `multiple`."""

    height: int
    width: int
    multiple: int = 1

    def of(self, height: int, width: int) -> Size:
        """The new height and width of a picture."""
        down, across = self.height / height, self.width / width
        scale = across if abs(1 - across) < abs(1 - down) else down
        return self.rounded(scale * height), self.rounded(scale * width)

    def rounded(self, length: float) -> int:
        """The nearest multiple, one of them at least."""
        return max(round(length / self.multiple), 1) * self.multiple
