"""A folder has one run at a time: the lock of the first of its processes."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from vitrail.errors import BusyError, TrainingError, VitrailError
from vitrail.locks import locked
from vitrail.runs.record import RESULT, is_run
from vitrail.training.distributed import World

LOCK = ".lock"
_OTHER = "choose another folder (--out)"


@contextlib.contextmanager
def one_run(folder: Path, world: World) -> Iterator[None]:
    """Holds the lock of a run's folder; BusyError in all processes where another run has it.

    The folder is made, and removed again where nothing was written to it.
    """
    with contextlib.ExitStack() as stack:
        problem: VitrailError | None = None
        if world.main:
            try:
                stack.enter_context(_made(folder))
                stack.enter_context(locked(folder / LOCK, what=f"the run in {folder}"))
            except BusyError as error:
                problem = error
            except OSError as error:
                problem = TrainingError(f"the run cannot be written to {folder}: {error.__cause__ or error}; {_OTHER}")
        if (found := next((one for one in world.collect(problem) if one is not None), None)) is not None:
            raise found
        yield


@contextlib.contextmanager
def _made(folder: Path) -> Iterator[None]:
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # one that is not empty stays
            for path in missing:
                path.rmdir()


def check_new_run(folder: str | Path | None) -> None:
    """Refuses a folder with a model that is complete and has nothing to resume: it would be overwritten."""
    path = Path(folder or "")
    if folder and is_run(path) and (path / RESULT).is_file() and not any((path / "checkpoints").glob("step-*")):
        raise TrainingError(f"{path} already holds a complete run; choose another folder (--out), or remove this one")
