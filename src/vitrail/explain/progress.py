"""Progress of long work, for a progress bar."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]  # what is being done, parts done, parts in all


class Counter:
    """Counts the parts of the work and reports them."""

    def __init__(self, progress: Progress | None = None, total: int = 1) -> None:
        self._progress, self._total, self._done, self._text = progress, total, 0, ""

    def begin(self, text: str) -> None:
        """Says what is being done now."""
        self._text = text
        self._report()

    def advance(self) -> None:
        """One more part is done."""
        self._done = min(self._done + 1, self._total)
        self._report()

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(self._text, self._done, self._total)
