"""What a checkpoint is, without reading its tensors: its format, model, size, and whether its checksum holds."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.checksums import check_file
from vitrail.errors import CheckpointError, VitrailError
from vitrail.models.backbone import BackboneConfig
from vitrail.models.checkpoint import find_model
from vitrail.models.checkpoint.dialect import to_ours
from vitrail.models.checkpoint.files import PICKLES, Weights, find_file, read_shard_names
from vitrail.models.checkpoint.headers import check_pickle, digest_of_tensors, read_header
from vitrail.models.checkpoint.outline import check_numbers, of_file, outlined
from vitrail.models.checkpoint.unwrap import take_out, without_wrappers
from vitrail.models.registry import FAMILIES, build, name_of
from vitrail.strict_json import read_json


@dataclass(frozen=True, kw_only=True)
class Inspected:
    """A checkpoint as its header describes it."""

    path: Path
    files: tuple[Path, ...]
    tensors: dict[str, Tensor]  # without memory
    parameters: int
    written_by: str  # vitrail, or another project
    checksum: str  # what is known of it
    config: BackboneConfig | None = None
    problem: str | None = None  # why it cannot be loaded

    @property
    def model(self) -> str | None:
        """The name of the model, or of its family."""
        if self.config is None:
            return None
        return name_of(self.config) or type(self.config).__name__.removesuffix("Config")


def inspect_checkpoint(path: Path) -> Inspected:
    """What a weight file or a folder with one holds; CheckpointError where that cannot be told."""
    file = find_file(path)
    files = tuple(file.parent / name for name in read_shard_names(file)) if file.name.endswith(".json") else (file,)
    tensors: dict[str, Tensor] = {}
    metadata: dict[str, str] = {}
    for one in files:
        found, metadata = _outline(one)
        tensors |= found
    checksum, problem = _checksum(file, metadata)
    weights = Weights(
        path=file, tensors=without_wrappers(tensors), metadata=metadata, config=_config(file.parent), verified=True
    )
    config, written_by = None, "unknown"
    try:
        recognised = find_model(weights, None)
        config, written_by = recognised.config, "vitrail" if "vitrail" in metadata else "another project"
        with of_file(file):
            check_numbers(config, tensors=len(tensors))
            family = FAMILIES[recognised.family]
            to_ours(recognised, outlined(lambda: build(family, recognised.config), tensors=len(tensors)))
    except VitrailError as error:
        problem = problem or str(error)
    count = sum(tensor.numel() for tensor in tensors.values() if tensor.is_floating_point())
    return Inspected(
        path=file, files=files, tensors=tensors, parameters=count, written_by=written_by, checksum=checksum,
        config=config, problem=problem,
    )  # fmt: skip


def _outline(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    if file.suffix not in PICKLES:
        header = read_header(file)
        return header.tensors, header.metadata
    check_pickle(file)
    try:
        return take_out(torch.load(file, map_location="meta", weights_only=True)), {}
    except Exception as error:  # a damaged pickle raises almost anything
        raise CheckpointError(
            f"{file} is damaged, or contains other objects than tensors, which are never loaded from a pickle"
        ) from error


def _config(folder: Path) -> dict[str, Any] | None:
    file = folder / "config.json"
    if not file.is_file():
        return None
    try:
        content = read_json(file)
    except ValueError as error:
        raise CheckpointError(f"{file} is not valid JSON: {error}") from error
    return content if isinstance(content, dict) else None


def _checksum(file: Path, metadata: dict[str, str]) -> tuple[str, str | None]:
    """What is known of a file's checksum, and what is wrong with it."""
    try:
        if check_file(file):
            return "matches SHA256SUMS", None
    except CheckpointError as error:
        return "does not match SHA256SUMS", str(error)
    if "vitrail" not in metadata:
        return "none", None
    expected, _, text = metadata["vitrail"].partition(" ")
    if digest_of_tensors(text, file, read_header(file)) == expected:
        return "matches its header", None
    return "does not match its header", f"{file} was changed after it was saved: the checksum does not match"
