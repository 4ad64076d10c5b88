"""The small service in processes of its own; like the real one, its supervisor does without torch.

    PYTHONPATH=tests python -m support.small_supervisor FOLDER '{"workers": 2}'  # prints its address when ready

FOLDER holds `classes.txt`, which every opening reads: tests write it to swap the model, or to break it.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.errors import CheckpointError
from vitrail.serve.config import ServeConfig
from vitrail.serve.supervisor import serve


@dataclass(frozen=True)
class Opening:
    """Reads the classes from a file, as a model that may be replaced."""

    folder: Path
    seconds: float = 0.0

    def __call__(self) -> Any:
        from vitrail.serve.model import ServedModel

        names = tuple((self.folder / "classes.txt").read_text().split())
        if not names:
            raise CheckpointError("classes.txt is empty")
        from support.small_service import Brightness, Halves

        return ServedModel(engine=Brightness(names, self.seconds), explainer=Halves())


if __name__ == "__main__":
    options = json.loads(sys.argv[2])
    opening = Opening(Path(sys.argv[1]), options.pop("seconds"))
    serve(opening, ServeConfig(**options), on_ready=lambda address, about: print(address, flush=True))
