"""vitrail's own format: config and checksum are stored in the header of the safetensors file."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vitrail import __version__
from vitrail.config import from_dict, to_dict
from vitrail.errors import CheckpointError, ConfigError, nearest
from vitrail.files import digest
from vitrail.models.backbone import Backbone, BackboneConfig
from vitrail.models.checkpoint.dialect import Foreign, Found, rule
from vitrail.models.checkpoint.files import Weights
from vitrail.models.checkpoint.pixels import for_ours
from vitrail.models.checkpoint.shapes import name_the_model
from vitrail.models.registry import FAMILIES, family_of
from vitrail.strict_json import from_json

_OURS = "patch.projection.weight"  # a tensor in every plain state dict of a vitrail ViT


class Vitrail:
    """The format that `save` writes."""

    name = "vitrail"

    def recognises(self, weights: Weights) -> bool:
        """Whether the header, config.json or the names of the tensors are vitrail's."""
        return "vitrail" in weights.metadata or _beside(weights) is not None or _OURS in weights.tensors

    def read(self, weights: Weights, hint: BackboneConfig | None) -> Found:
        """The model of the weights, after the checksum has been verified."""
        if "vitrail" not in weights.metadata and _beside(weights) is None:
            return _bare(weights, hint)
        checksum, _, header = weights.metadata.get("vitrail", "").partition(" ")
        if not weights.verified and checksum != digest(header, weights.tensors):
            raise CheckpointError(f"{weights.path} was changed after it was saved: the checksum does not match")
        about = from_json(header)
        beside = _beside(weights)
        if beside is not None and beside != about:
            raise CheckpointError(
                f"{weights.path.parent / 'config.json'} does not belong to {weights.path.name}: it was edited, or a "
                f"save was interrupted. {weights.path.name} is complete without it: delete config.json to load it"
            )
        if about["family"] not in FAMILIES:
            raise CheckpointError(
                f"{weights.path} has the unknown family {about['family']!r}; {nearest(about['family'], FAMILIES)}"
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
        """The model's tensors and the config that `read` builds it from."""
        return Foreign(tensors=model.state_dict(), config=describe_model(model))


def _bare(weights: Weights, hint: BackboneConfig | None) -> Found:
    """A plain state dict from `torch.save(model.state_dict(), ...)`: the model must be named."""
    if hint is None:
        raise CheckpointError(
            f"{weights.path} is a state dict without a config (vitrail.save adds one); "
            f"{name_the_model('vit_base_patch16')}"
        )
    family = next(family for family in FAMILIES.values() if family.config is type(hint))
    head = weights.tensors.get("head.weight")
    config = replace(hint, num_classes=0 if head is None else len(head))
    return Found(family=family.name, config=config, tensors=weights.tensors, rules=[rule(n) for n in weights.tensors])


def _beside(weights: Weights) -> Mapping[str, Any] | None:
    """Vitrail's config.json, if it belongs to this file; a folder may have other files too."""
    ours = (weights.config or {}).get("library") == "vitrail" and weights.path.name == "model.safetensors"
    return weights.config if ours else None


def describe_model(model: Backbone) -> Mapping[str, Any]:
    """The content of config.json and of the header."""
    return {
        "library": "vitrail",
        "version": __version__,
        "family": family_of(model).name,
        "config": to_dict(model.config),
        "labels": list(model.labels) if model.labels else None,
        "preprocess": for_ours(model.preprocess),
    }
