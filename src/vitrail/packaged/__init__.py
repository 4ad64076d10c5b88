"""The packaged model: a run folder in fp16, made by `benchmarks/make_packaged.py`."""

from importlib import resources
from pathlib import Path

from vitrail.errors import CheckpointError

NAME = "packaged"  # its name in commands and `open_model`; a folder of that name is ./packaged
FILES = ("model.safetensors", "config.json", "run.json", "best.json")
MAX_BYTES = 12_000_000


def packaged_folder() -> Path:
    """The folder of the packaged model."""
    return Path(str(resources.files(__name__)))


def find_packaged() -> Path:
    """The folder of the packaged model; raises CheckpointError if the installation has none."""
    folder = packaged_folder()
    if missing := [name for name in FILES if not (folder / name).is_file()]:
        raise CheckpointError(
            f"this installation has no packaged model ({folder / missing[0]} is missing); pass a run, as in "
            "`vitrail predict runs/my-run picture.jpg`, or train one with `vitrail demo`"
        )
    return folder


def samples() -> dict[str, Path]:
    """Sample images by class, which are not in the training data of the model."""
    return {path.stem: path for path in sorted((packaged_folder() / "samples").glob("*.png"))}
