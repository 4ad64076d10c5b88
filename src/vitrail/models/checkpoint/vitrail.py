"""Our own format: the config and a checksum travel in the header of the safetensors file."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vitrail import __version__
from vitrail.config import from_dict, to_dict
from vitrail.errors import CheckpointError, ConfigError, nearest
from vitrail.models.backbone import Backbone, BackboneConfig
from vitrail.models.checkpoint.dialect import Foreign, Found, rule
from vitrail.models.checkpoint.files import Weights, digest
from vitrail.models.checkpoint.pixels import for_ours
from vitrail.models.registry import FAMILIES, family_of

_OURS = "patch.projection.weight"  # a tensor that every plain state dict of ours has


class Vitrail:
    """What `save` writes."""

    name = "vitrail"

    def recognises(self, weights: Weights) -> bool:
        """Whether the header is ours, or the config beside the file, or the tensors' names."""
        return "vitrail" in weights.metadata or _beside(weights) is not None or _OURS in weights.tensors

    def read(self, weights: Weights, hint: BackboneConfig | None) -> Found:
        """The model behind the weights, after the checksum has been verified."""
        if "vitrail" not in weights.metadata and _beside(weights) is None:
            return _bare(weights, hint)
        checksum, _, header = weights.metadata.get("vitrail", "").partition(" ")
        if checksum != digest(header, weights.tensors):
            raise CheckpointError(f"{weights.path} was changed after it was saved: its checksum does not match")
        about = json.loads(header)
        beside = _beside(weights)
        if beside is not None and beside != about:
            raise CheckpointError(
                f"{weights.path.parent / 'config.json'} does not belong to {weights.path.name}: it was edited, or a "
                f"save was interrupted. {weights.path.name} is complete without it: delete config.json to load it"
            )
        if about["family"] not in FAMILIES:
            raise CheckpointError(
                f"{weights.path} is of family {about['family']!r}; {nearest(about['family'], FAMILIES)}"
            )
        try:
            config = from_dict(FAMILIES[about["family"]].config, about["config"])
        except ConfigError as error:
            saved = about.get("version", "?")
            raise CheckpointError(
                f"{weights.path} was saved by vitrail {saved}; this is {__version__}: {error}"
            ) from error
        return Found(
            family=about["family"],
            config=config,
            tensors=weights.tensors,
            rules=[rule(name) for name in weights.tensors],
            labels=about.get("labels"),
        )

    def write(self, model: Backbone) -> Foreign:
        """The model as it is, with what `read` needs to build it again."""
        return Foreign(tensors=model.state_dict(), config=describe_model(model))


def _bare(weights: Weights, hint: BackboneConfig | None) -> Found:
    """A plain state dict, as `torch.save(model.state_dict(), ...)` leaves it: the model must be named."""
    if hint is None:
        raise CheckpointError(
            f"{weights.path} holds tensors of ours but not the config, which `vitrail.save` would have added; name the "
            f"model: load(..., model='vit_base_patch16')"
        )
    family = next(family for family in FAMILIES.values() if family.config is type(hint))
    head = weights.tensors.get("head.weight")
    config = replace(hint, num_classes=0 if head is None else len(head))
    return Found(family=family.name, config=config, tensors=weights.tensors, rules=[rule(n) for n in weights.tensors])


def _beside(weights: Weights) -> Mapping[str, Any] | None:
    """The config.json of ours that speaks of this file; a folder may hold other files too."""
    ours = (weights.config or {}).get("library") == "vitrail" and weights.path.name == "model.safetensors"
    return weights.config if ours else None


def describe_model(model: Backbone) -> Mapping[str, Any]:
    """What config.json and the header say of a model."""
    return {
        "library": "vitrail",
        "version": __version__,
        "family": family_of(model).name,
        "config": to_dict(model.config),
        "labels": list(model.labels) if model.labels else None,
        "normalisation": for_ours(model.normalisation),
    }
