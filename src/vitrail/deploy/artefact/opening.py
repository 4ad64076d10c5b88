"""Opens what can run: an artefact, a folder of artefacts, a run or a checkpoint."""

from pathlib import Path
from typing import NamedTuple

import torch

from vitrail.deploy.artefact.engine import Engine, TorchEngine
from vitrail.deploy.artefact.runtimes import ExportedEngine, OnnxEngine, OpenVINOEngine
from vitrail.errors import CheckpointError, ConfigError
from vitrail.files import write_json
from vitrail.runs.paths import is_name
from vitrail.runs.trained import TrainedModel, open_model
from vitrail.strict_json import read_json

ARTEFACTS = (".pt2", ".onnx", ".xml")  # suffixes of what `vitrail export` writes
CHOICE = "fastest.json"  # in a folder of artefacts: the one that `vitrail bench` found fastest on this machine
_THREADS = 4096  # the most that a file may ask for
_NAME = 255  # letters of the name of a file
CERTIFICATE = "certificate.json"  # in a folder that `vitrail export` wrote


class Choice(NamedTuple):
    """The fastest artefact of a folder, and how it was run."""

    path: Path
    threads: int | None = None
    half: bool = False
    dynamic: bool = False


def open_engine(
    source: str | Path,
    *,
    threads: int | None = None,
    half: bool = False,
    dynamic: bool = False,
    device: str | torch.device = "cpu",
) -> Engine:
    """The engine for an artefact, for the fastest one of a folder, or for a run, a checkpoint or "packaged".

    `half` lets OpenVINO compute in bf16 what is not int8; `dynamic` makes int8 of a float32 .onnx, without calibration.
    Runs and checkpoints go to the device; artefacts run on the CPU.
    """
    if not is_artefact(source):
        return TorchEngine(open_weights(source).to(device))
    path, fast, half, dynamic = _chosen(Path(source), Choice(Path(source), threads, half, dynamic))
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist")
    if path.suffix == ".onnx":
        return OnnxEngine(path, threads=threads or fast, dynamic=dynamic)
    if path.suffix == ".xml":
        return OpenVINOEngine(path, threads=threads or fast, half=half)
    return ExportedEngine(path)


def open_weights(source: str | Path) -> TrainedModel:
    """The trained model of a run or a checkpoint; ConfigError for an artefact or a bare model name."""
    if is_artefact(source):
        raise ConfigError(f"{source} is an exported model; give the run or the checkpoint that it was made from")
    if is_name(source):
        raise ConfigError(f"{source} is the name of a model and has no weights; give a run or a checkpoint")
    return open_model(source)


def is_artefact(path: str | Path) -> bool:
    """Whether a path is an artefact, or a folder that `vitrail export` or `vitrail bench` wrote to."""
    return Path(path).suffix in ARTEFACTS or any((Path(path) / name).is_file() for name in (CHOICE, CERTIFICATE))


def artefacts_in(folder: Path) -> list[Path]:
    """The artefacts of a folder, in alphabetical order."""
    return sorted(path for path in folder.iterdir() if path.suffix in ARTEFACTS)


def write_choice(folder: Path, choice: Choice, *, machine: str) -> Path:
    """Writes which artefact of a folder is the fastest; `open_engine(folder)` takes it."""
    plain = {"artefact": choice.path.name, "threads": choice.threads, "half": choice.half, "dynamic": choice.dynamic}
    write_json(folder / CHOICE, {**plain, "machine": machine})
    return folder / CHOICE


def _chosen(path: Path, asked: Choice) -> Choice:
    """The artefact itself, the fastest of a folder, or the only one."""
    if (path / CHOICE).is_file():
        return _read_choice(path / CHOICE)
    if not (path / CERTIFICATE).is_file():
        return asked
    found = artefacts_in(path)
    if not found:
        raise CheckpointError(f"{path} has no artefact ({', '.join(ARTEFACTS)}); its certificate says why")
    if len(found) > 1:
        names = ", ".join(one.name for one in found)
        raise CheckpointError(f"{path} has {names}; name one, or let `vitrail bench {path}` find the fastest")
    return asked._replace(path=found[0])


def _read_choice(file: Path) -> Choice:
    try:
        choice = read_json(file)
        half, dynamic = (bool(choice.get(way, False)) for way in ("half", "dynamic"))
        name, threads = str(choice["artefact"]), choice["threads"]
        if (
            Path(name).name != name
            or len(name) > _NAME
            or not (threads is None or (type(threads) is int and 0 < threads <= _THREADS))
        ):
            raise ValueError("it must name a file of this folder and a number of threads")
        return Choice(file.parent / name, threads, half, dynamic)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} is damaged; write it again: vitrail bench {file.parent}") from error
