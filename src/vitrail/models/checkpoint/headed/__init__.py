"""Checkpoints of a backbone with a head for another task than classification: detection, segmentation, depth."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from vitrail.config import from_dict, to_dict
from vitrail.errors import CheckpointError, Unsupported, VitrailError
from vitrail.layers.position import LearnedPosition
from vitrail.models.backbone import Backbone
from vitrail.models.checkpoint import DIALECTS
from vitrail.models.checkpoint.dialect import Found, to_ours
from vitrail.models.checkpoint.files import Weights, read
from vitrail.models.checkpoint.headed import detr, dpt, eomt, rt_detr, segformer
from vitrail.models.checkpoint.headed.translation import HeadTranslation, Tensors
from vitrail.models.checkpoint.huggingface_config import labels_of
from vitrail.models.checkpoint.outline import check_layers, check_numbers, outlined
from vitrail.models.heads import DepthHeadConfig
from vitrail.models.initialise import SkipInit
from vitrail.models.registry import FAMILIES, build
from vitrail.strict_json import read_json

TRANSLATIONS: tuple[HeadTranslation, ...] = (
    detr.DETR,
    detr.DEFORMABLE_DETR,
    rt_detr.RT_DETR,
    segformer.SEGFORMER,
    eomt.EOMT,
    dpt.DPT,
)
_BY_KIND = {each.kind: each for each in TRANSLATIONS}


@dataclass(frozen=True, kw_only=True)
class Headed:
    """A backbone, its head, the kind of task that they are for, and the names of the classes."""

    backbone: Backbone
    head: nn.Module
    config: Any  # of the head
    task: str
    labels: tuple[str, ...]


def has_head(path: Path) -> bool:
    """Whether config.json beside the weights names a model with a head that is read here."""
    folder = path if path.is_dir() else path.parent
    try:
        about = read_json(folder / "config.json")
    except (OSError, ValueError):
        return False
    kind = _BY_KIND.get(str(about.get("model_type"))) if isinstance(about, dict) else None
    classes = about.get("architectures") if kind is not None else None
    return kind is not None and isinstance(classes, list) and kind.architecture in classes


def load_headed(
    path: str | Path, *, image_size: tuple[int, int] | None = None, dtype: torch.dtype = torch.float32
) -> Headed:
    """The model of a folder or file with config.json beside it; no tensor may be missing or left over."""
    weights = read(Path(path))
    about = weights.config or {}
    translation = _BY_KIND.get(str(about.get("model_type")))
    if translation is None:
        raise Unsupported(f"{weights.path}: model_type {about.get('model_type')!r} is not one of {', '.join(_BY_KIND)}")
    try:
        return _read(weights, about, translation, image_size, dtype)
    except CheckpointError as error:
        raise CheckpointError(f"{weights.path}: {error}") from error
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        reason = str(error)[:300] if isinstance(error, VitrailError) else repr(error)[:300]
        raise CheckpointError(f"{weights.path} is not a valid checkpoint: {reason}") from error


def _read(
    weights: Weights,
    about: Mapping[str, Any],
    translation: HeadTranslation,
    image_size: tuple[int, int] | None,
    dtype: torch.dtype,
) -> Headed:
    inner, outer = _parted(weights.tensors, translation)
    check_layers(about, len(weights.tensors))
    config = _typed(translation.head(about))
    check_numbers(config, tensors=len(weights.tensors))
    labels = _labels(about, weights)
    backbone = _backbone(replace(weights, tensors=inner, config=dict(translation.backbone(about))))

    def make() -> nn.Module:
        made: nn.Module = config.build(backbone, *(() if isinstance(config, DepthHeadConfig) else (len(labels),)))
        return made

    outline = outlined(make, tensors=len(weights.tensors))
    found = Found(
        family="",
        config=backbone.config,
        tensors=translation.completed(outer, config),
        rules=list(translation.rules(config)),
        ignored=translation.ignored,
    )
    state = to_ours(found, cast("Backbone", outline))  # it reads the state alone
    with SkipInit():
        head = make()
    head.load_state_dict(state)
    for module in backbone.modules():
        if isinstance(module, LearnedPosition):
            module.bilinear = translation.bilinear
    if image_size is not None:
        backbone.resize(image_size)
    return Headed(
        backbone=backbone.to(dtype).eval(),
        head=head.to(dtype).eval(),
        config=config,
        task=translation.task,
        labels=labels,
    )


def _typed(config: Any) -> Any:
    """The same config; ConfigError where a value is not of the type of its option."""
    plain = {name: value for name, value in to_dict(config).items() if name != "kind"}
    return from_dict(type(config), plain)


def _parted(tensors: Tensors, translation: HeadTranslation) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors of the backbone, named as if it were alone, and the others."""
    prefixes = translation.prefix
    if translation.every_prefix:
        inner = {name: tensor for name, tensor in tensors.items() if name.startswith(prefixes)}
        return dict(translation.renamed(inner)), {name: tensors[name] for name in tensors if name not in inner}
    prefix = next((one for one in prefixes if any(name.startswith(one) for name in tensors)), prefixes[0])
    cut = "" if translation.keep_prefix else prefix
    inner = {name.removeprefix(cut): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    return inner, {name: tensor for name, tensor in tensors.items() if not name.startswith(prefix)}


def _backbone(weights: Weights) -> Backbone:
    """The backbone of tensors that are named as if it were alone; frozen batch norms count no batches."""
    counted = {
        re.sub(r"running_mean$", "num_batches_tracked", name): torch.tensor(0)
        for name in weights.tensors
        if name.endswith("running_mean")
    }
    weights = replace(weights, tensors=counted | weights.tensors)
    dialect = next((each for each in DIALECTS.values() if each.recognises(weights)), None)
    if dialect is None:
        kind = (weights.config or {}).get("model_type") or (weights.config or {}).get("architecture")
        raise Unsupported(f"{weights.path}: a backbone of the kind {kind!r} is not supported")
    found, count = dialect.read(weights, None), len(weights.tensors)
    check_numbers(found.config, tensors=count)
    state = to_ours(found, outlined(lambda: build(FAMILIES[found.family], found.config), tensors=count))
    with SkipInit():
        backbone = build(FAMILIES[found.family], found.config)
    backbone.load_state_dict(state)
    return backbone


def _labels(about: Mapping[str, Any], weights: Weights) -> tuple[str, ...]:
    named = about.get("id2label") or {}
    count = len(named) or int(about.get("num_labels", 2))
    if count > (rows := max(len(tensor) for tensor in weights.tensors.values() if tensor.ndim)):
        raise CheckpointError(f"the config says num_labels = {count:,}; no tensor has more than {rows:,} rows")
    return tuple(labels_of(about, count, weights.path) or (f"class {index}" for index in range(count)))
