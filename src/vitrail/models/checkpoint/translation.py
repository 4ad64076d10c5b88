"""The format of one peer for one family: names of tensors, and the entries of its config.json."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from vitrail.config import apply
from vitrail.errors import CheckpointError, Unsupported, nearest
from vitrail.models.backbone import Backbone, BackboneConfig
from vitrail.models.checkpoint.dialect import Foreign, Found, Rule, to_theirs
from vitrail.models.checkpoint.files import Weights
from vitrail.models.checkpoint.huggingface_config import labels_of
from vitrail.models.checkpoint.shapes import name_the_model
from vitrail.models.registry import FAMILIES, is_known, presets, resolve

# model_args that matter in training only, or that do not change the result.
_NO_NEWS = ("drop_rate", "drop_path_rate", "attn_drop_rate", "proj_drop_rate", "pos_drop_rate", "weight_init")
_EVERY = {"img_size": "image_size", "in_chans": "channels", "num_classes": "num_classes"}

# Our option, or a function from their value to our changes, or nothing.
Option = str | Callable[[Any], Mapping[str, Any]] | None


@dataclass(frozen=True, kw_only=True)
class Translation:
    """One family in one peer's format; `rules` gives every rule for a config of the family.

    `marks` are names of tensors that this peer has for this family and for no other; `kind` is the `model_type` of
    Hugging Face's config.json. `options` gives our option, or a function from their value to our changes, for each
    entry of timm's model_args or of Hugging Face's config.json; None means that it changes nothing. `describe` is the
    inverse: the config.json with which timm or Hugging Face builds the same model, or Unsupported. `own` are options
    in which all of this peer's models differ from our presets. `together` gives changes that follow from several
    entries.
    """

    peer: Literal["timm", "hf", "torchvision", "authors"]
    family: str
    marks: tuple[str, ...]
    rules: Callable[[Any], Iterable[Rule]]
    options: Mapping[str, Option]
    describe: Callable[[Any], Mapping[str, Any]] | None = None
    kind: str = ""
    variant: str = ""  # tells it from another translation of the same peer and family
    base: str = ""  # the preset that Hugging Face's defaults are those of
    ignored: str = r"(?!)"
    own: Mapping[str, Any] = field(default_factory=dict)
    together: Callable[[Mapping[str, Any], Any], Mapping[str, Any]] = lambda said, config: {}

    @property
    def name(self) -> str:
        """Peer and family, e.g. "timm swin"."""
        return " ".join(filter(None, (self.peer, self.family, self.variant)))

    def recognises(self, weights: Weights) -> bool:
        """Whether config.json names the family, or the tensors do."""
        said = (weights.config or {}).get("model_type")
        if said is not None:
            return self.peer == "hf" and said == self.kind
        return all(mark in weights.tensors for mark in self.marks)

    def read(self, weights: Weights, hint: BackboneConfig | None) -> Found:
        """The model of the weights: the preset that config.json or the caller names, changed as config.json says."""
        beside = weights.config or {}
        config = apply(self._base(beside, hint, weights), self.own)
        said = self._said(beside)
        config = self._changed(config, said, weights)
        if "num_classes" not in said:
            config = apply(config, {"num_classes": self._classes(config, weights.tensors)})
        labels = labels_of(beside, config.num_classes, weights.path) if self.peer == "hf" else beside.get("label_names")
        return Found(
            family=self.family,
            config=config,
            tensors=weights.tensors,
            rules=list(self.rules(config)),
            ignored=self.ignored,
            labels=labels if labels and len(labels) == config.num_classes else None,
        )

    def write(self, model: Backbone) -> Foreign:
        """The model in the peer's format, with its config.json."""
        if self.describe is None:
            raise Unsupported(f"vitrail does not write {self.family} models in {self.peer}'s format")
        return Foreign(tensors=to_theirs(model, self.rules(model.config)), config=self.describe(model.config))

    def _base(self, beside: Mapping[str, Any], hint: BackboneConfig | None, weights: Weights) -> BackboneConfig:
        """The config to start from: that of the architecture in config.json, or of the model that the caller named."""
        family = FAMILIES[self.family]
        named = str(beside.get("architecture", "")) or (self.base if "model_type" in beside else "")
        if named and is_known(named) and resolve(named)[0] is family:
            return resolve(named)[1]
        if isinstance(hint, family.config):
            return hint
        known = next(iter(family.presets))
        if not named:
            raise CheckpointError(
                f"{weights.path} is a checkpoint of {self.peer} of the family {self.family!r}, and no config.json "
                f"gives its size; {name_the_model(known)}"
            )
        raise CheckpointError(
            f"{weights.path} is a checkpoint of {self.peer} of the family {self.family!r}; its config.json says "
            f"{named!r}, which is not one of its sizes in vitrail ({nearest(named, family.presets)}); "
            f"{name_the_model(known)}"
        )

    def _said(self, beside: Mapping[str, Any]) -> Mapping[str, Any]:
        if "model_type" in beside:
            given = {key: value for key, value in beside.items() if key in self.options}
            architectures = beside.get("architectures") or ()
            if architectures and not any("ForImageClassification" in str(name) for name in architectures):
                return given | {"num_classes": 0}
            labels, count = beside.get("id2label"), beside.get("num_labels")
            classes = len(labels) if labels else count
            return given if classes is None else given | {"num_classes": int(classes)}
        own = {"num_classes": beside["num_classes"]} if "num_classes" in beside else {}
        return own | dict(beside.get("model_args") or {})

    def _classes(self, config: BackboneConfig, tensors: Mapping[str, Tensor]) -> int:
        """How many classes the head in the file has: the rows of its last matrix; 0 where there is no head."""
        rules = self.rules(apply(config, {"num_classes": 1}))  # some names differ in a model without a head
        names = [each.theirs[0] for each in rules if re.fullmatch(r"head\.(.+\.)?weight", each.ours)]
        heads = [tensors[name] for name in names if name in tensors and tensors[name].ndim == 2]
        return len(heads[-1]) if heads else 0

    def _changed(self, config: BackboneConfig, said: Mapping[str, Any], weights: Weights) -> BackboneConfig:
        changes: dict[str, Any] = {}
        for key, value in said.items():
            if key in self.options:
                ours = self.options[key]
            elif key in _EVERY:
                ours = _EVERY[key]
            elif key in _NO_NEWS:
                ours = None
            else:
                known = ", ".join((*self.options, *_EVERY))
                raise CheckpointError(
                    f"{weights.path}: config.json says {key} = {value!r}, which is not supported for {self.family}; "
                    f"supported: {known}"
                )
            if callable(ours):
                changes |= ours(value)
            elif ours is not None:
                changes[ours] = value
        return apply(config, {**changes, **self.together(said, config)})


def only(name: str, *allowed: Any) -> Callable[[Any], Mapping[str, Any]]:
    """An option that must have one of the allowed values, and then changes nothing."""

    def check(value: Any) -> Mapping[str, Any]:
        if value not in allowed:
            raise CheckpointError(f"{name} = {value!r} is not supported; it must be {' or '.join(map(repr, allowed))}")
        return {}

    return check


def timm_card(config: BackboneConfig) -> Mapping[str, Any]:
    """Timm's config.json for a preset that is one of timm's architectures, or Unsupported.

    Image size, channels and number of classes may differ from the preset.
    """
    free = ("image_size", "channels", "num_classes", "dynamic_size", "drop_path")
    same = {name: getattr(config, name) for name in free if hasattr(config, name)}
    for name, preset in presets().items():
        if type(preset.config) is type(config) and replace(preset.config, **same) == config:
            changes = {} if config.channels == 3 else {"in_chans": config.channels}
            pretrained = {"input_size": [config.channels, *config.image_size], "num_classes": config.num_classes}
            own = {"architecture": name, "num_classes": config.num_classes, "model_args": changes}
            return own | {"pretrained_cfg": pretrained}  # without it timm takes all of this for one
    raise Unsupported("timm has no architecture of this size; only presets can be converted to timm")


def sized_timm_card(config: BackboneConfig) -> Mapping[str, Any]:
    """As `timm_card`, for architectures whose name in timm ends in the image size."""
    card = timm_card(config)
    name, size = card["architecture"], presets()[card["architecture"]].config.image_size
    moved = {} if config.image_size == size else {"img_size": list(config.image_size)}
    return {
        **card,
        "architecture": name if name.endswith(f"to{size[0]}") else f"{name}_{size[0]}",  # ..._192to256 says it
        "model_args": card["model_args"] | moved,
        "pretrained_cfg": card["pretrained_cfg"] | {"fixed_input_size": True},
    }
