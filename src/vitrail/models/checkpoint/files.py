"""Weight files: reading those of anyone, writing our own so that they are whole or not there at all."""

import contextlib
import hashlib
import json
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitrail.errors import CheckpointError, ChosenNotice
from vitrail.nearby import hint_at

# The names under which training scripts tuck away the weights beside optimisers and counters.
_WRAPPERS = ("model_ema", "state_dict_ema", "model", "state_dict", "model_state_dict", "module")
PICKLES = (".pth", ".pt", ".bin", ".tar")
# In a folder, the first of these that is there is the checkpoint.
_USUAL = (
    "model.safetensors",
    "model.safetensors.index.json",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What a checkpoint holds, before anyone has asked what model it is of."""

    path: Path
    tensors: dict[str, Tensor]
    config: dict[str, Any] | None = None  # config.json beside the file
    metadata: Mapping[str, str]  # the header of a safetensors file


def read(path: Path, *, names: Collection[str] = ()) -> Weights:
    """Reads a file, a sharded file's index, or a folder that holds one of them.

    What is not there is told with the nearest that is, or with what its folder holds; a bare word may be near `names`.
    """
    if not path.exists():
        hint = hint_at(path, fits=_may_hold_weights, names=names if is_word(path) else ())
        usual = ": no file, no folder, and no model of `vitrail models`" if is_word(path) and names else ""
        raise CheckpointError(f"there is no {path}" + (usual if hint is None else f"; {hint}"))
    file = _find(path) if path.is_dir() else path
    if file.name.endswith(".index.json"):
        tensors, metadata = _read_shards(file)
    else:
        tensors, metadata = _read_file(file)
    # The prefixes of nn.DataParallel and torch.compile.
    tensors = {re.sub(r"^(module\.|_orig_mod\.)+", "", name): value for name, value in tensors.items()}
    return Weights(path=file, tensors=tensors, metadata=metadata, config=_read_json(file.parent / "config.json"))


def is_word(path: Path) -> bool:
    """Whether a path could be the name of a model: no folder leads to it, and it does not end as weight files do."""
    return path.name == str(path) and path.suffix not in (".safetensors", *PICKLES)


def _may_hold_weights(path: Path) -> bool:
    return path.is_dir() or path.suffix in (".safetensors", *PICKLES)


def _find(folder: Path) -> Path:
    for name in _USUAL:
        if (folder / name).is_file():
            return folder / name
    found = sorted(item for item in folder.iterdir() if item.suffix in (".safetensors", *PICKLES) and item.is_file())
    if len(found) == 1:
        return found[0]
    if not found:
        below = sorted(file.parent for file in folder.glob(f"*/{_USUAL[0]}"))
        hint = f"; did you mean one of the folders in it, such as {str(below[0])!r}?" if below else ""
        raise CheckpointError(f"{folder} holds no weights: no .safetensors, {', '.join(PICKLES)} file{hint}")
    raise CheckpointError(f"{folder} holds several weight files; name one of {', '.join(item.name for item in found)}")


def _read_file(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    if file.suffix == ".safetensors":
        return _read_safetensors(file)
    if file.suffix in PICKLES:
        return _read_pickle(file), {}
    raise CheckpointError(f"{file} is no weight file: it must end in .safetensors, {', '.join(PICKLES)}")


def _read_safetensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(file, framework="pt") as handle:
            return {name: handle.get_tensor(name) for name in handle.keys()}, handle.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is damaged or no safetensors file: {error}") from error


def _read_pickle(file: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle fails in more ways than one can name
        raise CheckpointError(
            f"{file} cannot be read safely: it is damaged, or it holds more than tensors. Only the tensors of a "
            f"pickle are ever loaded (weights_only=True): {type(error).__name__}: {str(error).split(chr(10))[0]}"
        ) from error
    tensors = _unwrap(content)
    if not tensors:
        raise CheckpointError(f"{file} holds no tensors under any of the usual names: {', '.join(_WRAPPERS)}")
    return tensors


def _unwrap(content: Any) -> dict[str, Tensor]:
    if not isinstance(content, Mapping):
        return {}
    for name in _WRAPPERS:
        if isinstance(content.get(name), Mapping):
            others = [other for other in _WRAPPERS if other != name and isinstance(content.get(other), Mapping)]
            if others:
                message = f"the file holds {', '.join([name, *others])}; {name} was taken"
                warnings.warn(message, ChosenNotice, stacklevel=2)
            return _unwrap(content[name])
    return {name: value for name, value in content.items() if isinstance(name, str) and isinstance(value, Tensor)}


def _read_shards(index: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    content = _read_json(index) or {}
    where = content.get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(name, str) for name in where.values()):
        raise CheckpointError(f"{index} has no weight_map of tensors to files")
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(where.values())):
        shard = index.parent / name
        if shard.parent != index.parent or not shard.is_file():
            raise CheckpointError(f"{index} names the shard {name}, which is not beside it")
        tensors |= _read_file(shard)[0]
    if wrong := sorted(set(where) ^ set(tensors)):
        raise CheckpointError(f"{index} and its shards disagree on {len(wrong)} tensors: {', '.join(wrong[:8])}")
    return tensors, {}


def _read_json(file: Path) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} is no JSON object")
    return content


def digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """A SHA-256 over a text and all tensors: names, types, shapes and contents."""
    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def write_tensors(
    file: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], *, config: Mapping[str, Any] | None = None
) -> None:
    """Writes a safetensors file, whole or not at all, and the config.json beside it where one is given.

    The old config.json goes before the new weights come: whenever the power fails, what is there can be loaded.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    beside = file.parent / "config.json"
    write_atomically(file, lambda new: save_file(plain, new, dict(metadata)), stale=None if config is None else beside)
    if config is not None:
        write_json(beside, config)


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file, whole or not at all."""
    write_atomically(file, lambda new: new.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8"))


def write_atomically(file: Path, write: Callable[[Path], object], *, stale: Path | None = None) -> None:
    """Lets `write` fill a temporary file, forces it to disk, removes `stale`, and puts it in the place of `file`."""
    if file.is_dir():
        raise CheckpointError(f"{file} is a folder; it cannot be replaced by a file")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _temporary(file) as new:
            write(new)
            _sync(new)
            new.chmod(0o666 & ~_umask())
            if stale is not None:
                stale.unlink(missing_ok=True)
            new.replace(file)
        _sync(file.parent)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{file} could not be written; weights that were there before are untouched: {error}"
        ) from error


@contextlib.contextmanager
def _temporary(file: Path) -> Iterator[Path]:
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
