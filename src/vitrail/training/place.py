"""Places to write to, looked at before any work is done for them."""

import tempfile
from pathlib import Path

from vitrail.errors import DataError


def barrier(folder: Path) -> str | None:
    """Why nothing can be written to a folder, which need not be there yet; None where something can. Leaves nothing."""
    there = folder
    try:
        there = next(place for place in (folder, *folder.parents) if place.exists())
        with tempfile.TemporaryDirectory(prefix=".vitrail-", dir=there):
            return None
    except OSError as error:
        return f"nothing can be written to {there} ({error.strerror})"


def check_file(file: Path) -> None:
    """Refuses a file that cannot be written."""
    if file.is_dir():
        raise DataError(f"{file} cannot be written: it is a folder; name a file in it")
    _check(file, file.parent)


def check_folder(folder: Path) -> None:
    """Refuses a folder that nothing can be written to."""
    _check(folder, folder)


def _check(place: Path, folder: Path) -> None:
    if (why := barrier(folder)) is not None:
        raise DataError(f"{place} cannot be written: {why}; choose another place")
