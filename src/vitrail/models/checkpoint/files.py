"""Weight files of all formats: reading them."""

import reprlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitrail.checksums import check_file
from vitrail.errors import CheckpointError, reason
from vitrail.models.checkpoint.headers import check_pickle, check_tensors, read_header
from vitrail.models.checkpoint.unwrap import KEYS, take_out, without_wrappers
from vitrail.strict_json import read_json
from vitrail.suggest import suggest_path

_NAME = 255  # bytes of the name of a file
PICKLES = (".pth", ".pt", ".bin", ".tar")
# In a folder, the first of these that exists is the checkpoint.
_USUAL = (
    "model.safetensors",
    "model.safetensors.index.json",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The content of a checkpoint, before its model is recognised."""

    path: Path
    tensors: dict[str, Tensor]
    config: dict[str, Any] | None = None  # config.json in the same folder
    metadata: Mapping[str, str]  # the header of a safetensors file
    image_size: tuple[int, int] | None = None  # what the caller says, where shapes do not tell it
    verified: bool = False  # the file has the checksum that was written beside it


def read(path: Path, *, names: Collection[str] = ()) -> Weights:
    """Reads a file, a sharded file's index, or a folder that holds one of them.

    A missing path is an error that suggests the nearest one; a single word may also be meant for one of `names`.
    """
    if not path.exists():
        hint = suggest_path(path, fits=_may_hold_weights, names=names if is_word(path) else ())
        usual = ": neither a file, a folder nor a model of `vitrail models`" if is_word(path) and names else ""
        raise CheckpointError(f"{path} does not exist" + (usual if hint is None else f"; {hint}"))
    file = find_file(path)
    sharded = file.name.endswith(".index.json")
    verified = not sharded and check_file(file)
    tensors, metadata = _read_shards(file) if sharded else _read_file(file)
    config = _read_json(file.parent / "config.json")
    plain = without_wrappers(tensors)
    return Weights(path=file, tensors=plain, metadata=metadata, config=config, verified=verified)


def is_word(path: Path) -> bool:
    """Whether a path could be the name of a model: a single word without the suffix of a weight file."""
    return path.name == str(path) and path.suffix not in (".safetensors", *PICKLES)


def _may_hold_weights(path: Path) -> bool:
    return path.is_dir() or path.suffix in (".safetensors", *PICKLES)


def find_file(path: Path) -> Path:
    """The weight file of a folder, or the index of its shards; a file is itself."""
    return _find(path) if path.is_dir() else path


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
        if not hint:
            hint = "; give the folder of a run, such as runs/NAME, a checkpoint, or an exported model"
        raise CheckpointError(f"{folder} has no weight file (.safetensors, {', '.join(PICKLES)}){hint}")
    raise CheckpointError(f"{folder} has several weight files; pass one: {', '.join(item.name for item in found)}")


def _read_file(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    if file.suffix == ".safetensors":
        return _read_safetensors(file)
    if file.suffix in PICKLES:
        return _read_pickle(file), {}
    raise CheckpointError(f"{file} is not a weight file: the name must end in .safetensors, {', '.join(PICKLES)}")


def _read_safetensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    read_header(file)
    try:
        with safe_open(file, framework="pt") as handle:
            return {name: handle.get_tensor(name) for name in handle.keys()}, handle.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is damaged or not a safetensors file: {error}") from error
    except RuntimeError as error:  # torch, where the system cannot map the file
        raise CheckpointError(f"{file} cannot be read: {str(error).splitlines()[0]}") from error


def _read_pickle(file: Path) -> dict[str, Tensor]:
    check_pickle(file)
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle raises almost anything
        raise CheckpointError(
            f"{file} cannot be read safely: it is damaged, or contains other objects than tensors, which are never "
            f"loaded from a pickle (weights_only=True): {type(error).__name__}: {reason(error).split('. ')[0]:.200}"
        ) from error
    tensors = take_out(content)
    try:
        check_tensors(tensors, file.stat().st_size)
    except ValueError as error:
        raise CheckpointError(f"{file} is not a file of plain tensors: {error}") from error
    if not tensors:
        raise CheckpointError(f"{file} has no tensors at its top level or under the usual keys: {', '.join(KEYS)}")
    return tensors


def _read_shards(index: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    where = _shards(index)
    tensors: dict[str, Tensor] = {}
    for name in read_shard_names(index):
        check_file(index.parent / name)
        tensors |= _read_file(index.parent / name)[0]
    if wrong := sorted(set(where) ^ set(tensors)):
        raise CheckpointError(f"{index} and its shards disagree on {len(wrong)} tensors: {', '.join(wrong[:8])}")
    return tensors, {}


def read_shard_names(index: Path) -> list[str]:
    """The names of the shards of an index, which are all in its folder."""
    names = sorted(set(_shards(index).values()))
    for name in names:
        if Path(name).name != name or len(name.encode(errors="replace")) > _NAME:
            raise CheckpointError(f"{index} names the shard {reprlib.repr(name)}; expected a file of its folder")
        if not (index.parent / name).is_file():
            raise CheckpointError(f"{index} names the shard {name!r}, which is missing from its folder")
    return names


def _shards(index: Path) -> dict[str, str]:
    where = (_read_json(index) or {}).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(name, str) for name in where.values()):
        raise CheckpointError(f"{index} has no valid weight_map from tensors to files")
    return where


def _read_json(file: Path) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    try:
        check_file(file)
        content = read_json(file)
    except ValueError as error:
        raise CheckpointError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} is not a JSON object")
    return content
