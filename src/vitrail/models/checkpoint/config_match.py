"""Checks that a checkpoint is the model that its config.json, or the caller, says it is."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from vitrail.errors import CheckpointError
from vitrail.models.backbone import BackboneConfig
from vitrail.models.staged import StagedConfig
from vitrail.models.vit import ViTConfig


def structure(config: BackboneConfig) -> dict[str, Any]:
    """The options that decide which tensors a model has; image size and number of classes are not among them."""
    if isinstance(config, StagedConfig):
        return {"family": type(config).__name__, "dims": config.dims, "depths": config.depths}
    if not isinstance(config, ViTConfig):
        return {"family": type(config).__name__}
    bias = getattr(config.attention, "bias", None)
    return {
        "family": type(config).__name__,
        "dim": config.dim,
        "depth": config.depth,
        "num_heads": config.num_heads,
        "patch": config.patch,
        "position": tuple(sorted(position.kind for position in config.position)),
        "class_token": config.class_token,
        "embed_norm": config.embed_norm,
        "attention bias": bias,
        "mlp": config.mlp.kind,
        "norm": config.norm.kind,
        "layer_scale": config.layer_scale is not None,
        "final_norm": config.final_norm != "none",
    }


def check_match(
    found: BackboneConfig, said: BackboneConfig, *, by: str, path: Path, ignoring: Collection[str] = ()
) -> None:
    """Raises CheckpointError with every difference if the tensors belong to another model than the one `by` names."""
    ours, theirs = structure(found), structure(said)
    differences = [
        f"{name} is {ours[name]}, not {theirs[name]}"
        for name in ours
        if name in theirs and name not in ignoring and ours[name] != theirs[name]
    ]
    if differences:
        raise CheckpointError(f"{path}: the tensors do not match the model given by {by}: {'; '.join(differences)}")
