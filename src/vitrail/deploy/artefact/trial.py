"""What an artefact computed for the trial picture when it was certified, and whether it still does.

Another library version, another processor or a damaged file can change what a file computes without any error.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.deploy.artefact.engine import Engine
from vitrail.deploy.artefact.opening import ARTEFACTS, CERTIFICATE
from vitrail.errors import CheckpointError
from vitrail.runs.trial import try_model
from vitrail.strict_json import read_json
from vitrail.tasks.task import distance

KEY = "trial"  # in certificate.json, beside the report: artefact -> output -> numbers
_VALUES = 1000  # of each output at most, evenly spaced
_ERROR, _COSINE = 1e-3, 0.95  # the largest difference over the largest value in float32; the least cosine in less

Trial = Mapping[str, list[float]]


def trial_of(engine: Engine) -> dict[str, list[float]]:
    """Some numbers of each output for the trial picture."""
    return {name: _some(values.numpy()) for name, values in try_model(engine).items()}


def check_trial(engine: Engine) -> None:
    """CheckpointError where an artefact computes other numbers than its certificate says; no certificate, no check."""
    path = Path(engine.source)
    if path.suffix not in ARTEFACTS or (expected := _stored(path)) is None:
        return
    found, exact = trial_of(engine), engine.card.precision == "float32" and not (engine.half or engine.dynamic)
    for name, values in expected.items():
        if len(found.get(name, ())) != len(values):
            raise CheckpointError(f"{path} has other outputs than its certificate says: {name}; export it again")
        error, cosine = distance(np.array([values]), np.array([found[name]]))
        if (error > _ERROR) if exact else (cosine < _COSINE):
            off = f"error {error:.1e}, allowed {_ERROR:.0e}" if exact else f"cosine {cosine:.3f}, at least {_COSINE}"
            raise CheckpointError(
                f"{path} does not compute what its certificate says for the trial picture ({name}: {off}); the file is "
                "damaged, or it does not run correctly on this machine: export it here, or choose another format"
            )


def _stored(path: Path) -> Trial | None:
    file = path.with_name(CERTIFICATE)
    if not file.is_file():
        return None
    try:
        data: Any = read_json(file)
        trial = data.get(KEY, {}).get(path.name)
        return None if trial is None else {name: list(map(float, values)) for name, values in trial.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} is damaged: {error}; export the model again") from error


def _some(values: "np.ndarray[Any, Any]") -> list[float]:
    flat = values.astype(np.float64).ravel()
    step = -(-flat.size // _VALUES)
    return [float(f"{value:.7g}") for value in flat[:: max(1, step)]]
