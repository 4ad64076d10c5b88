"""Loading and saving: `load` and `convert` read vitrail, timm, Hugging Face and torchvision; `save` writes vitrail."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from vitrail.checksums import remove_checksums
from vitrail.config import apply
from vitrail.data.preprocess import Preprocess
from vitrail.errors import CheckpointError, ConfigError, HeadNotice, Notice, VitrailError, nearest
from vitrail.files import digest, write_json, write_tensors
from vitrail.layers.fp8 import FrozenFp8Linear
from vitrail.models.backbone import Backbone, BackboneConfig
from vitrail.models.checkpoint.config_match import check_match
from vitrail.models.checkpoint.dialect import Dialect, Found, to_ours
from vitrail.models.checkpoint.families import TRANSLATIONS
from vitrail.models.checkpoint.files import PICKLES, Weights, is_word, read
from vitrail.models.checkpoint.hub import locate
from vitrail.models.checkpoint.huggingface import HuggingFace
from vitrail.models.checkpoint.outline import check_layers, check_numbers, of_file, outlined
from vitrail.models.checkpoint.pixels import PROCESSOR, for_timm, read_preprocess
from vitrail.models.checkpoint.processors import write_processor
from vitrail.models.checkpoint.timm import Timm
from vitrail.models.checkpoint.torchvision import Torchvision
from vitrail.models.checkpoint.unwrap import candidates, say_prefix
from vitrail.models.checkpoint.vitrail import Vitrail, describe_model
from vitrail.models.initialise import SkipInit
from vitrail.models.registry import FAMILIES, build, family_of, is_known, resolve, usual_names
from vitrail.strict_json import to_json

__all__ = ["convert", "load", "save"]

# The families' own come first: some of their names are a plain ViT's too.
_ALL: tuple[Dialect, ...] = (Vitrail(), *TRANSLATIONS, HuggingFace(), Torchvision(), Timm())
DIALECTS: dict[str, Dialect] = {each.name: each for each in _ALL}
# Classes of Hugging Face's whose head is another one than a classifier; the package `headed` reads them.
WITH_HEADS = (
    "DetrForObjectDetection", "DeformableDetrForObjectDetection", "RTDetrForObjectDetection",
    "SegformerForSemanticSegmentation", "EomtForUniversalSegmentation", "DPTForDepthEstimation",
)  # fmt: skip


def load(
    source: str | Path,
    *,
    model: str | BackboneConfig | None = None,
    image_size: int | tuple[int, int] | None = None,
    num_classes: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Backbone:
    """A model with the weights of a file, a folder or `hf-hub:owner/name[@revision]`, ready for use (`eval`).

    The format is recognised. The architecture comes from config.json in the same folder, then from the shapes of the
    tensors, then from `model` (a name or a config), which must match the tensors. The number of classes is read from
    the file. No tensor may be missing or left over. `image_size` resamples positions; `num_classes` replaces the head
    by a new one; both give a notice. `model.preprocess` is what the files say about how images are prepared.
    """
    weights = _weights(source)
    _refuse_heads(weights)
    if image_size is not None:
        weights = replace(weights, image_size=apply(BackboneConfig(), {"image_size": image_size}).image_size)
    hint = resolve(model)[1] if isinstance(model, str) else model
    found = find_model(weights, hint)
    if hint is not None:
        check_match(found.config, hint, by=f"model={model!r}" if isinstance(model, str) else "model", path=weights.path)
    with of_file(weights.path):
        check_numbers(found.config, tensors=len(found.tensors))
        outline = outlined(lambda: build(FAMILIES[found.family], found.config), tensors=len(found.tensors))
        state = to_ours(found, outline)
    # Nothing is rounded before the end: positions are resampled in full precision, and float64 stays float64.
    with SkipInit():
        backbone = build(FAMILIES[found.family], found.config).to(torch.promote_types(dtype, torch.float32))
    backbone.load_state_dict(state)
    backbone.labels = tuple(found.labels) if found.labels else None
    if image_size is not None:
        backbone.resize(image_size)
    backbone.preprocess = _preprocess(weights.path, backbone.config)
    if num_classes is not None and num_classes != found.config.num_classes:
        backbone.reset_head(num_classes)
        if found.config.num_classes:  # pre-training leaves none that could be missed
            became = f"replaced by a fresh one for {num_classes}" if num_classes else "left out"
            warnings.warn(f"the head for {found.config.num_classes} classes was {became}", HeadNotice, stacklevel=2)
    return backbone.to(dtype).eval()


def _weights(source: str | Path) -> Weights:
    """Reads the file of a source; the name of a model, which has no weights, gets an error of its own."""
    path = locate(source)
    if not path.exists() and is_word(path) and is_known(path.name):
        raise CheckpointError(
            f"{path} is the name of a model, which comes without weights; pass a run folder, a weight file or "
            "hf-hub:owner/name, or, in Python, vitrail.create() for random weights"
        )
    return read(path, names=usual_names())


def _refuse_heads(weights: Weights) -> None:
    """Says how to open a model whose head is not a classifier."""
    classes = (weights.config or {}).get("architectures")
    if isinstance(classes, list) and (named := [each for each in classes if each in WITH_HEADS]):
        raise CheckpointError(
            f"{weights.path} is a {named[0]}, a model with a head of its own: open it with vitrail.open, or name it "
            "for vitrail predict, eval, export, serve or train --from"
        )


def _preprocess(file: Path, config: BackboneConfig) -> Preprocess | None:
    """The preprocessing of a weight file at the model's image size; if it cannot be read, a notice and None."""
    try:
        found = read_preprocess(file, image_size=config.image_size)
    except CheckpointError as error:
        warnings.warn(str(error), Notice, stacklevel=3)
        return None
    if found is None or found.channels == config.channels:
        return found
    # A file of a model for RGB that was built for other channels: one number for all of them.
    mean, std = ((sum(values) / len(values),) for values in (found.mean, found.std))
    return replace(found, channels=config.channels, mean=mean, std=std)


def find_model(weights: Weights, hint: BackboneConfig | None) -> Found:
    """The model of the weights; unexpected shapes or entries are reported as a damaged file."""
    try:
        with of_file(weights.path):
            check_layers(weights.config, len(weights.tensors))
        dialect, weights = _recognise(weights)
        return dialect.read(weights, hint)
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        if isinstance(error, VitrailError):
            raise
        reason = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{weights.path} is not a valid checkpoint ({reason})") from error


def _recognise(weights: Weights) -> tuple[Dialect, Weights]:
    """The format of the weights, and the weights without a prefix that a training script has added to names."""
    for prefix, tensors in candidates(weights.tensors):
        named = replace(weights, tensors=tensors)
        for dialect in DIALECTS.values():
            if dialect.recognises(named):
                if prefix:
                    say_prefix(weights.tensors, prefix)
                return dialect, named
    some = ", ".join(sorted(weights.tensors)[:6])
    raise CheckpointError(
        f"{weights.path} is not recognised as a checkpoint of vitrail, timm, Hugging Face or torchvision; "
        f"it holds {len(weights.tensors)} tensors: {some}"
    )


def _bare(model: Any) -> Backbone:
    """The model inside the wrappers of torch.compile, DataParallel or DDP."""
    for name in ("_orig_mod", "module"):
        if not isinstance(model, Backbone) and hasattr(model, name):
            return _bare(getattr(model, name))
    if not isinstance(model, Backbone):
        raise ConfigError(f"save takes a vitrail model, not a {type(model).__name__}")
    return model


def save(model: Backbone, path: str | Path) -> Path:
    """Writes a model to a folder (model.safetensors and config.json) or to one .safetensors file; returns the file.

    Files are written atomically, with a checksum that `load` verifies. The names of the classes and the preprocessing
    are stored too, if the model has them.
    """
    path = Path(path)
    if path.suffix in PICKLES:
        raise ConfigError(f"cannot save as {path.suffix}; use a folder ({path.with_suffix('')}) or .safetensors")
    model = _bare(model)
    if any(isinstance(module, FrozenFp8Linear) for module in model.modules()):
        raise ConfigError("a model with rounded weights cannot be saved; save the model that it was made from")
    about = describe_model(model)
    header = to_json(about, ascii_only=True)
    state = model.state_dict()
    file = path if path.suffix == ".safetensors" else path / "model.safetensors"
    # One entry, since safetensors shuffles several: the same model gives the same bytes.
    metadata = {"vitrail": f"{digest(header, state)} {header}"}
    remove_checksums(file.parent)
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
    """Converts a checkpoint to a folder that vitrail, timm or Hugging Face loads; returns the weight file.

    The result is read back and every tensor compared. The preprocessing is converted too.
    """
    if to not in ("vitrail", "timm", "hf"):
        raise ConfigError(f"cannot convert to {to!r}; {nearest(to, ('vitrail', 'timm', 'hf'))}")
    if Path(out).exists() and Path(out).resolve() in (Path(source).resolve(), Path(source).resolve().parent):
        raise ConfigError(f"{out} is the folder of the checkpoint itself; choose another output folder")
    loaded = load(source, model=model, num_classes=num_classes, image_size=image_size)
    file = save(loaded, out) if to == "vitrail" else _translate(loaded, Path(out), to)
    if wrong := _differences(loaded, load(file)):
        raise CheckpointError(f"{file} differs from the model after reading it back: {', '.join(wrong[:8])}")
    return file


def _differences(model: Backbone, back: Backbone) -> list[str]:
    """The names of the tensors in which two models differ, and how images are normalised if that differs."""
    state, again = model.state_dict(), back.state_dict()
    wrong = [name for name in state if name not in again or not torch.equal(state[name], again[name])]
    before, after = (each.preprocess and each.preprocess.statistics for each in (model, back))
    return wrong if before == after else [*wrong, "how images are normalised"]


def _translate(model: Backbone, out: Path, to: Literal["timm", "hf"]) -> Path:
    """Writes a model in another project's format, with its file about preprocessing."""
    dialect = DIALECTS.get(f"{to} {family_of(model).name}", DIALECTS[to])
    foreign, file, preprocess = dialect.write(model), out / "model.safetensors", model.preprocess
    about = for_timm(foreign.config, preprocess) if preprocess and to == "timm" else foreign.config
    write_tensors(file, foreign.tensors, {"format": "pt"}, config=about)
    if preprocess and to == "hf":
        write_json(out / PROCESSOR, write_processor(preprocess))
    return file
