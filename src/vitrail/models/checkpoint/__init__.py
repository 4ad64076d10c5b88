"""Weights in and out: `load` and `convert` read vitrail, timm, Hugging Face and torchvision; `save` writes our own."""

import json
import warnings
from pathlib import Path
from typing import Any, Literal

import torch

from vitrail.errors import CheckpointError, ConfigError, HeadNotice, Notice, VitrailError, nearest
from vitrail.models.backbone import Backbone, BackboneConfig
from vitrail.models.checkpoint.agreement import check_agreement
from vitrail.models.checkpoint.dialect import Dialect, Found, to_ours
from vitrail.models.checkpoint.families import TRANSLATIONS
from vitrail.models.checkpoint.files import PICKLES, Weights, digest, is_word, read, write_json, write_tensors
from vitrail.models.checkpoint.hub import locate
from vitrail.models.checkpoint.huggingface import HuggingFace
from vitrail.models.checkpoint.pixels import (
    PROCESSOR,
    Pixels,
    by_channel,
    find,
    for_processor,
    for_timm,
)
from vitrail.models.checkpoint.timm import Timm
from vitrail.models.checkpoint.torchvision import Torchvision
from vitrail.models.checkpoint.vitrail import Vitrail, describe_model
from vitrail.models.initialise import Undrawn
from vitrail.models.registry import FAMILIES, build, family_of, is_known, presets, resolve

__all__ = ["convert", "load", "save"]

# The families' own come first: some of their names are a plain ViT's too.
_ALL: tuple[Dialect, ...] = (Vitrail(), *TRANSLATIONS, HuggingFace(), Torchvision(), Timm())
DIALECTS: dict[str, Dialect] = {each.name: each for each in _ALL}


def load(
    source: str | Path,
    *,
    model: str | BackboneConfig | None = None,
    image_size: int | tuple[int, int] | None = None,
    num_classes: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Backbone:
    """A model with the weights of a file, a folder or `hf-hub:owner/name[@revision]`, ready for use (`eval`).

    The project that wrote the weights is recognised; the architecture comes from the config beside them, or from the
    tensors' shapes, or from `model`, the name or config of a model, where neither tells enough; the tensors must be of
    that model. Nothing may be missing or left over. `image_size` resamples positions; `num_classes` replaces the head
    by a fresh one; both say so.
    """
    weights = _weights(source)
    hint = resolve(model)[1] if isinstance(model, str) else model
    found = _read(weights, hint)
    if hint is not None:
        check_agreement(
            found.config, hint, by=f"model={model!r}" if isinstance(model, str) else "model", path=weights.path
        )
    # Nothing is rounded before the end: positions are resampled in full precision, and float64 stays float64.
    with Undrawn():
        backbone = build(FAMILIES[found.family], found.config).to(torch.promote_types(dtype, torch.float32))
    try:
        state = to_ours(found, backbone)
    except CheckpointError as error:
        raise CheckpointError(f"{weights.path}: {error}") from error
    backbone.load_state_dict(state)
    backbone.labels = tuple(found.labels) if found.labels else None
    backbone.normalisation = _normalisation(weights.path)
    if image_size is not None:
        backbone.resize(image_size)
    if num_classes is not None and num_classes != found.config.num_classes:
        backbone.reset_head(num_classes)
        if found.config.num_classes:  # pre-training leaves none that could be missed
            message = f"the head for {found.config.num_classes} classes was replaced by a fresh one for {num_classes}"
            warnings.warn(message, HeadNotice, stacklevel=2)
    return backbone.to(dtype).eval()


def _weights(source: str | Path) -> Weights:
    """The file of a source; who names a model, or nearly so, is told that and not of a missing file."""
    path = locate(source)
    if not path.exists() and is_word(path) and is_known(path.name):
        raise CheckpointError(
            f"{path} is the name of a model, and a name brings no weights; name a run's folder, a weight file or "
            "hf-hub:owner/name"
        )
    return read(path, names=presets())


def _normalisation(file: Path) -> Pixels | None:
    """What images are brought to for the weights of a file; where that cannot be read, the weights still can."""
    try:
        return find(file)
    except CheckpointError as error:
        warnings.warn(str(error), Notice, stacklevel=3)
        return None


def _read(weights: Weights, hint: BackboneConfig | None) -> Found:
    """What the project that wrote the weights makes of them; a tensor or entry of a wild shape is the file's fault."""
    try:
        return _recognise(weights).read(weights, hint)
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        if isinstance(error, VitrailError):
            raise
        reason = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{weights.path} is no checkpoint that can be understood ({reason})") from error


def _recognise(weights: Weights) -> Dialect:
    for dialect in DIALECTS.values():
        if dialect.recognises(weights):
            return dialect
    some = ", ".join(sorted(weights.tensors)[:6])
    raise CheckpointError(
        f"{weights.path} is not recognised as a model of vitrail, timm, Hugging Face or torchvision; "
        f"it holds {len(weights.tensors)} tensors: {some}"
    )


def _bare(model: Any) -> Backbone:
    """The model inside what torch.compile, DataParallel or DDP wrapped around it."""
    for name in ("_orig_mod", "module"):
        if not isinstance(model, Backbone) and hasattr(model, name):
            return _bare(getattr(model, name))
    if not isinstance(model, Backbone):
        raise ConfigError(f"save takes a vitrail model, not a {type(model).__name__}")
    return model


def save(model: Backbone, path: str | Path) -> Path:
    """Writes a model to a folder (model.safetensors and config.json) or to one .safetensors file; returns the file.

    Each file is whole or not there at all, and carries a checksum that `load` verifies; the names of the classes and
    how images are normalised are in it, where the model knows them.
    """
    path = Path(path)
    if path.suffix in PICKLES:
        raise ConfigError(f"vitrail saves folders and .safetensors files, not {path.suffix}: {path.with_suffix('')}")
    model = _bare(model)
    about = describe_model(model)
    header = json.dumps(about)
    state = model.state_dict()
    file = path if path.suffix == ".safetensors" else path / "model.safetensors"
    # One entry, since safetensors shuffles several: the same model gives the same bytes.
    metadata = {"vitrail": f"{digest(header, state)} {header}"}
    write_tensors(file, state, metadata, config=about if file != path else None)
    return file


def convert(
    source: str | Path,
    out: str | Path,
    *,
    to: Literal["vitrail", "timm", "hf"] = "vitrail",
    model: str | BackboneConfig | None = None,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
) -> Path:
    """Rewrites any known checkpoint as a folder that vitrail, timm or Hugging Face loads; returns the weight file.

    What was written is read back, and every tensor compared. How images are normalised goes along.
    """
    if to not in ("vitrail", "timm", "hf"):
        raise ConfigError(f"cannot convert to {to!r}; {nearest(to, ('vitrail', 'timm', 'hf'))}")
    if Path(out).exists() and Path(out).resolve() in (Path(source).resolve(), Path(source).resolve().parent):
        raise ConfigError(f"{out} is where the checkpoint comes from; name another folder")
    loaded = load(source, model=model, num_classes=num_classes, image_size=image_size)
    file = save(loaded, out) if to == "vitrail" else _translate(loaded, Path(out), to)
    if wrong := _differences(loaded, load(file)):
        raise CheckpointError(f"{file} does not read back as it was written: {', '.join(wrong[:8])}")
    return file


def _differences(model: Backbone, back: Backbone) -> list[str]:
    """The names of what two models do not share."""
    state, again, channels = model.state_dict(), back.state_dict(), model.config.channels
    wrong = [name for name in state if name not in again or not torch.equal(state[name], again[name])]
    before, after = (pixels and by_channel(pixels, channels) for pixels in (model.normalisation, back.normalisation))
    return wrong if before == after else [*wrong, "how images are normalised"]


def _translate(model: Backbone, out: Path, to: Literal["timm", "hf"]) -> Path:
    """Writes a model in the words of another project, with the file that tells it how images are normalised."""
    dialect = DIALECTS.get(f"{to} {family_of(model).name}", DIALECTS[to])
    foreign, file, pixels = dialect.write(model), out / "model.safetensors", model.normalisation
    channels, size = model.config.channels, model.config.image_size
    about = for_timm(foreign.config, pixels, channels) if pixels and to == "timm" else foreign.config
    write_tensors(file, foreign.tensors, {"format": "pt"}, config=about)
    if pixels and to == "hf":
        write_json(out / PROCESSOR, for_processor(pixels, channels, size))
    return file
