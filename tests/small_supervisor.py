"""The small service in processes of its own; like the real one, its supervisor does without torch.

    python tests/small_supervisor.py FOLDER '{"workers": 2}'      # prints its address when it is ready

FOLDER holds `classes.txt`, which every opening reads: tests write it to swap the model, or to break it.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.deploy.serve import serve
from vitrail.deploy.serve_config import ServeConfig
from vitrail.errors import CheckpointError


@dataclass(frozen=True)
class Opening:
    """Reads the classes from a file, as a model that may be replaced."""

    folder: Path
    seconds: float = 0.0

    def __call__(self) -> Any:
        from vitrail.deploy.serve_model import Served

        names = tuple((self.folder / "classes.txt").read_text().split())
        if not names:
            raise CheckpointError("classes.txt is empty")
        from small_service import Brightness, Halves

        return Served(engine=Brightness(names, self.seconds), explainer=Halves())


if __name__ == "__main__":
    options = json.loads(sys.argv[2])
    opening = Opening(Path(sys.argv[1]), options.pop("seconds"))
    serve(opening, ServeConfig(**options), on_ready=lambda address, about: print(address, flush=True))
