"""How one peer keeps the models of one family: by which names, and how its config.json says which size it is."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from vitrail.config import apply
from vitrail.errors import CheckpointError, Unsupported, nearest
from vitrail.models.backbone import Backbone, BackboneConfig
from vitrail.models.checkpoint.dialect import Foreign, Found, Rule, to_theirs
from vitrail.models.checkpoint.files import Weights
from vitrail.models.checkpoint.huggingface_config import labels_of
from vitrail.models.registry import FAMILIES, is_known, presets, resolve

# model_args that training alone reads, or that leave the result as it is.
_NO_NEWS = ("drop_rate", "drop_path_rate", "attn_drop_rate", "proj_drop_rate", "pos_drop_rate", "weight_init")
_EVERY = {"img_size": "image_size", "in_chans": "channels", "num_classes": "num_classes"}

Option = str | Callable[[Any], Mapping[str, Any]] | None  # our option, or changes of ours by their value, or nothing


@dataclass(frozen=True, kw_only=True)
class Translation:
    """One family in one peer's words; `rules` writes out every rule for a config of the family.

    `marks` are names of tensors that this peer has for this family and for no other; `kind` is the `model_type` of
    Hugging Face's config.json. `options` gives our option, or a function from their value to changes of ours, for each
    entry of timm's model_args or of Hugging Face's config.json; None says that it changes nothing. `describe` is the
    way back: what timm or Hugging Face must be told to build the same model, or Unsupported. `own` are options that
    this peer's models have and our presets have not.
    """

    peer: Literal["timm", "hf", "torchvision", "authors"]
    family: str
    marks: tuple[str, ...]
    rules: Callable[[Any], Iterable[Rule]]
    options: Mapping[str, Option]
    describe: Callable[[Any], Mapping[str, Any]] | None = None
    kind: str = ""
    base: str = ""  # the preset that Hugging Face's defaults are those of
    ignored: str = r"(?!)"
    own: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Peer and family, e.g. "timm swin"."""
        return f"{self.peer} {self.family}"

    def recognises(self, weights: Weights) -> bool:
        """Whether config.json names the family, or the tensors do."""
        said = (weights.config or {}).get("model_type")
        if said is not None:
            return self.peer == "hf" and said == self.kind
        return all(mark in weights.tensors for mark in self.marks)

    def read(self, weights: Weights, hint: BackboneConfig | None) -> Found:
        """The model behind the weights: the preset that config.json or the caller names, with config.json's changes."""
        beside = weights.config or {}
        config = apply(self._base(beside, hint, weights), self.own)
        config = self._changed(config, self._said(beside), weights)
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
        """The model in the peer's words, with the config.json that says what it is."""
        if self.describe is None:
            raise Unsupported(f"vitrail does not write {self.family} models in {self.peer}'s format")
        return Foreign(tensors=to_theirs(model, self.rules(model.config)), config=self.describe(model.config))

    def _base(self, beside: Mapping[str, Any], hint: BackboneConfig | None, weights: Weights) -> BackboneConfig:
        """The config to start from: of the architecture that config.json names, or of the model that the caller did."""
        family = FAMILIES[self.family]
        named = str(beside.get("architecture", "")) or (self.base if "model_type" in beside else "")
        if named and is_known(named) and resolve(named)[0] is family:
            return resolve(named)[1]
        if isinstance(hint, family.config):
            return hint
        known = next(iter(family.presets))
        if not named:
            raise CheckpointError(
                f"{weights.path} holds {self.peer}'s names of {self.family} models, but no config.json beside it says "
                f"which one it is; name the model, e.g. load(..., model={known!r})"
            )
        raise CheckpointError(
            f"{weights.path} holds {self.peer}'s names of {self.family} models, and config.json says {named!r}, "
            f"which is no {self.family} preset of vitrail's ({nearest(named, family.presets)}); name the model that "
            f"it is, e.g. load(..., model={known!r})"
        )

    def _said(self, beside: Mapping[str, Any]) -> Mapping[str, Any]:
        if "model_type" in beside:
            labels = beside.get("id2label")
            head = any("ForImageClassification" in str(name) for name in beside.get("architectures") or ())
            classes = len(labels) if labels else int(beside.get("num_labels", 2))
            return {key: value for key, value in beside.items() if key in self.options} | {
                "num_classes": classes if head else 0
            }
        own = {"num_classes": beside["num_classes"]} if "num_classes" in beside else {}
        return own | dict(beside.get("model_args") or {})

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
                    f"{weights.path}: vitrail's {self.family} cannot follow {key} = {value!r}; {known}"
                )
            if callable(ours):
                changes |= ours(value)
            elif ours is not None:
                changes[ours] = value
        return apply(config, changes)


def only(name: str, *allowed: Any) -> Callable[[Any], Mapping[str, Any]]:
    """An option that changes nothing where it has one of the allowed values, and that no model of ours follows else."""

    def check(value: Any) -> Mapping[str, Any]:
        if value not in allowed:
            raise CheckpointError(f"{name} is {value!r}; vitrail follows {' or '.join(map(repr, allowed))} alone")
        return {}

    return check


def timm_card(config: BackboneConfig) -> Mapping[str, Any]:
    """What config.json tells timm of a preset that bears the name of an architecture of timm's, or Unsupported.

    Images and classes may be others than the preset's.
    """
    free = ("image_size", "channels", "num_classes", "dynamic_size", "drop_path")
    same = {name: getattr(config, name) for name in free if hasattr(config, name)}
    for name, preset in presets().items():
        if type(preset.config) is type(config) and replace(preset.config, **same) == config:
            changes = {} if config.channels == 3 else {"in_chans": config.channels}
            pretrained = {"input_size": [config.channels, *config.image_size], "num_classes": config.num_classes}
            own = {"architecture": name, "num_classes": config.num_classes, "model_args": changes}
            return own | {"pretrained_cfg": pretrained}  # without it timm takes all of this for one
    raise Unsupported("timm has a name for each of its sizes, and none for this one")


def sized_timm_card(config: BackboneConfig) -> Mapping[str, Any]:
    """As `timm_card`, where timm's name of the architecture ends in the one size that its images have."""
    card = timm_card(config)
    name, size = card["architecture"], presets()[card["architecture"]].config.image_size
    moved = {} if config.image_size == size else {"img_size": list(config.image_size)}
    return {
        **card,
        "architecture": name if name.endswith(f"to{size[0]}") else f"{name}_{size[0]}",  # ..._192to256 says it
        "model_args": card["model_args"] | moved,
        "pretrained_cfg": card["pretrained_cfg"] | {"fixed_input_size": True},
    }
