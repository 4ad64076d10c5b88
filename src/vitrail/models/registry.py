"""Every family and every named model; a new family is one line here."""

import fnmatch
import re
from dataclasses import replace
from typing import Any

from vitrail.config import apply
from vitrail.errors import ConfigError, nearest
from vitrail.models.backbone import Backbone, BackboneConfig
from vitrail.models.convnext import CONVNEXT
from vitrail.models.cvt import CVT
from vitrail.models.dat import DAT_FAMILY
from vitrail.models.deit import DEIT
from vitrail.models.efficientformer import EFFICIENTFORMER
from vitrail.models.efficientnet import EFFICIENTNET
from vitrail.models.family import Family, Preset
from vitrail.models.fastvit import FASTVIT
from vitrail.models.levit import LEVIT
from vitrail.models.metaformer import METAFORMER
from vitrail.models.mixer import MIXER
from vitrail.models.mobilevit import MOBILEVIT
from vitrail.models.pit import PIT
from vitrail.models.pvt import PVT_FAMILY, PVT_V2_FAMILY
from vitrail.models.resnet import RESNET
from vitrail.models.swin import SWIN
from vitrail.models.swin_v2 import SWIN_V2
from vitrail.models.vit_presets import VIT
from vitrail.models.xcit import XCIT

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        VIT,
        DEIT,
        RESNET,
        CONVNEXT,
        FASTVIT,
        MOBILEVIT,
        EFFICIENTNET,
        METAFORMER,
        MIXER,
        PVT_FAMILY,
        PVT_V2_FAMILY,
        CVT,
        LEVIT,
        SWIN,
        SWIN_V2,
        DAT_FAMILY,
        EFFICIENTFORMER,
        XCIT,
        PIT,
    )
}


# What a named size leaves to the data and to training.
_LEFT_OPEN = ("image_size", "channels", "num_classes", "dynamic_size", "dropout", "drop_path", "patch_drop")


def create(name: str, /, **changes: Any) -> Backbone:
    """A model by name, with fresh weights; keywords change its config: num_classes=10, position="rope", ...

    Choices take a name, a mapping that changes some of their options, or a config:
    `create("vit_small_patch16", attention={"qk_norm": True})`. timm's names are accepted:
    "vit_base_patch16_384.augreg_in1k" is vit_base_patch16 at 384 x 384.
    """
    family, config = resolve(name)
    return build(family, apply(config, changes))


def build(family: Family, config: BackboneConfig) -> Backbone:
    """The model of a family for a config."""
    model: Backbone = family.module(config)
    return model


def family_of(model: Backbone) -> Family:
    """The family that a model was built by."""
    for family in FAMILIES.values():
        if type(model) is family.module:
            return family
    raise ConfigError(f"{type(model).__name__} is no registered family; known: {', '.join(FAMILIES)}")


def list_models(pattern: str = "*") -> list[str]:
    """The names of all models that match a pattern such as "vit_*_patch16"; a bare word matches anywhere."""
    wild = pattern if any(mark in pattern for mark in "*?[") else f"*{pattern}*"
    return [name for name in presets() if fnmatch.fnmatchcase(name, wild)]


def presets() -> dict[str, Preset]:
    """All named sizes, in the order of the families."""
    return {name: preset for family in FAMILIES.values() for name, preset in family.presets.items()}


def name_of(config: BackboneConfig) -> str | None:
    """The named size that a config is, whatever its images and classes, and what training leaves out at random."""
    for name, (known, _) in presets().items():
        left_open = {field: getattr(known, field) for field in _LEFT_OPEN if hasattr(known, field)}
        if type(known) is type(config) and known == replace(config, **left_open):
            return name
    return None


def is_known(name: str) -> bool:
    """Whether `create` knows a name, ours or timm's."""
    return _named(name) is not None


def resolve(name: str) -> tuple[Family, BackboneConfig]:
    """The family and config behind a name of ours or of timm's."""
    found = _named(name)
    if found is None:
        raise ConfigError(f"there is no model {name!r}; {nearest(name.lower(), presets())}")
    return found


def _named(name: str) -> tuple[Family, BackboneConfig] | None:
    # timm adds the image size and, after a dot, the training that made the weights.
    bare = name.split(".", maxsplit=1)[0]
    for family in FAMILIES.values():
        if bare in family.presets:
            return family, family.presets[bare].config
    if sized := re.fullmatch(r"(.+)_(\d{2,4})", bare):
        for family in FAMILIES.values():
            if sized[1] in family.presets:
                return family, apply(family.presets[sized[1]].config, {"image_size": int(sized[2])})
    return None
