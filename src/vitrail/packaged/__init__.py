"""The models in the package, in fp16: a classifier of small photographs, and a backbone for photographs of any kind.

`packaged` is a run folder, made by `benchmarks/make_packaged.py`; `packaged-photos` are weights without a head, made by
`benchmarks/backbone.py`. Both names stand for their folders in commands and in `open_model`; a folder of such a name is
./packaged.
"""

import json
from importlib import resources
from pathlib import Path

from vitrail.errors import CheckpointError

NAME, PHOTOS = "packaged", "packaged-photos"
NAMES = (NAME, PHOTOS)
FILES = ("model.safetensors", "config.json", "run.json", "best.json")
PHOTOS_FILES = ("model.safetensors", "config.json", "ORIGIN.md", "LICENSE")
MAX_BYTES, MAX_PHOTOS_BYTES = 12_000_000, 25_000_000
LICENCE = "Apache-2.0"  # of both


def packaged_folder() -> Path:
    """The folder of the packaged models."""
    return Path(str(resources.files(__name__)))


def find_packaged(name: str = NAME) -> Path:
    """The folder of a packaged model; raises CheckpointError if the installation does not have it."""
    folder, files = (packaged_folder(), FILES) if name == NAME else (packaged_folder() / "photos", PHOTOS_FILES)
    if missing := [file for file in files if not (folder / file).is_file()]:
        raise CheckpointError(
            f"this installation has no packaged model ({folder / missing[0]} is missing); pass a run, as in "
            "`vitrail predict runs/my-run picture.jpg`, or train one with `vitrail demo`"
        )
    return folder


def packaged_size(name: str) -> tuple[int, int]:
    """The height and width of the images that a packaged model takes."""
    config = json.loads((find_packaged(name) / "config.json").read_text(encoding="utf-8"))["config"]
    height, width = config["image_size"]
    return height, width


def samples() -> dict[str, Path]:
    """Sample images by class, which are not in the training data of the model."""
    return {path.stem: path for path in sorted((packaged_folder() / "samples").glob("*.png"))}
