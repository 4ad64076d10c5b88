"""The model that ships with the package: a run's folder in fp16, made by `benchmarks/make_packaged.py`."""

from importlib import resources
from pathlib import Path

from vitrail.errors import CheckpointError

NAME = "packaged"  # what commands and `open_trained` call it; a folder of that name is ./packaged
FILES = ("model.safetensors", "config.json", "run.json", "best.json", "calibration.json")
MAX_BYTES = 12_000_000


def packaged_folder() -> Path:
    """Where the model lies, or would."""
    return Path(str(resources.files(__name__)))


def find_packaged() -> Path:
    """The folder of the model; CheckpointError in one sentence where the installation has none."""
    folder = packaged_folder()
    if missing := [name for name in FILES if not (folder / name).is_file()]:
        raise CheckpointError(
            f"this installation has no packaged model ({folder / missing[0]} is missing); name a run, as in "
            "`vitrail predict runs/my-run picture.jpg`, or make one with `vitrail demo`"
        )
    return folder


def samples() -> dict[str, Path]:
    """Pictures to try the model on, by what they show; none is of the data that it learned from."""
    return {path.stem: path for path in sorted((packaged_folder() / "samples").glob("*.png"))}
