"""The terminal of rich, for tables and progress: texts are printable, styles are rich's own."""

from collections.abc import Iterable
from typing import IO

from rich import console
from rich.segment import Segment

from vitrail.printable import printable


class Console(console.Console):
    """rich's, without what is in a text to steer a terminal."""

    @property
    def file(self) -> IO[str]:
        """The stream itself, which may be wrapped by `PrintableStream`, and that by a bar of rich."""
        file = super().file
        return getattr(file, "rich_proxied_file", file)

    @file.setter
    def file(self, file: IO[str]) -> None:
        """Another stream."""
        console.Console.file.fset(self, file)  # type: ignore[attr-defined]

    def render(
        self, renderable: console.RenderableType, options: console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The parts of what is printed."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))
