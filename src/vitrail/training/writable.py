"""Whether paths can be written, checked before any work is done for them."""

import tempfile
from pathlib import Path

from vitrail.errors import DataError


def write_barrier(folder: Path) -> str | None:
    """Why nothing can be written to a folder, which need not be there yet; None where something can. Leaves nothing."""
    there = folder
    try:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        with tempfile.TemporaryDirectory(prefix=".vitrail-", dir=there):
            return None
    except OSError as error:
        return f"cannot write to {there} ({error.strerror})"


def check_file(file: Path) -> None:
    """Refuses a file that cannot be written."""
    if file.is_dir():
        raise DataError(f"{file} cannot be written: it is a folder; name a file in it")
    _check(file, file.parent)


def check_folder(folder: Path) -> None:
    """Refuses a folder that nothing can be written to."""
    _check(folder, folder)


def _check(path: Path, folder: Path) -> None:
    if (why := write_barrier(folder)) is not None:
        raise DataError(f"{path} cannot be written: {why}; choose another path")
