"""All families and named models; to add a family, add one line here."""

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


# Options that are not part of a named size: they depend on data and training.
_LEFT_OPEN = ("image_size", "channels", "num_classes", "dynamic_size", "dropout", "drop_path", "patch_drop")


def create(name: str, /, **changes: Any) -> Backbone:
    """Creates a model by name, with random weights; keywords change its config: num_classes=10, position="rope", ...

    A choice is a name, a mapping of changed options, or a config:
    `create("vit_small_patch16", attention={"qk_norm": True})`. timm's names are accepted:
    "vit_base_patch16_384.augreg_in1k" is vit_base_patch16 at 384 x 384.
    """
    if "pretrained" in changes:
        raise ConfigError(_pretrained(name))
    family, config = resolve(name)
    return build(family, apply(config, changes))


def build(family: Family, config: BackboneConfig) -> Backbone:
    """The model of a family for a config."""
    model: Backbone = family.module(config)
    return model


def family_of(model: Backbone) -> Family:
    """The family of a model."""
    for family in FAMILIES.values():
        if type(model) is family.module:
            return family
    raise ConfigError(f"{type(model).__name__} is not a model of a known family: {', '.join(FAMILIES)}")


def list_models(pattern: str = "*") -> list[str]:
    """The names of all models that match a pattern such as "vit_*_patch16"; a word without "*" matches anywhere."""
    wild = pattern if any(mark in pattern for mark in "*?[") else f"*{pattern}*"
    return [name for name in presets() if fnmatch.fnmatchcase(name, wild)]


def presets() -> dict[str, Preset]:
    """All named sizes, in the order of the families."""
    return {name: preset for family in FAMILIES.values() for name, preset in family.presets.items()}


def usual_names() -> list[str]:
    """All named sizes as suggestions for a misspelt one: of several sizes of patches, the usual one comes first."""
    return sorted(presets(), key=lambda name: not name.endswith("_patch16"))


def name_of(config: BackboneConfig) -> str | None:
    """The preset name of a config, ignoring image size, classes and dropout."""
    for name, (known, _) in presets().items():
        left_open = {field: getattr(known, field) for field in _LEFT_OPEN if hasattr(known, field)}
        if type(known) is type(config) and known == replace(config, **left_open):
            return name
    return None


def is_known(name: str) -> bool:
    """Whether `create` knows this name, of vitrail or timm."""
    return _named(name) is not None


def resolve(name: str) -> tuple[Family, BackboneConfig]:
    """The family and config of a name of vitrail or timm."""
    found = _named(name)
    if found is None:
        hint = nearest(name.lower(), usual_names(), see="vitrail.list_models() or `vitrail models`")
        raise ConfigError(f"unknown model {name!r}; {hint}")
    return found


def _pretrained(name: str) -> str:
    """The error for pretrained=True: how to load weights, and who publishes some for this model."""
    published = presets()[found].weights if (found := _preset_name(name)) else ""
    return (
        "create() makes models with random weights and has no option pretrained; load trained weights from a file, a "
        f"folder or the Hugging Face hub: vitrail.load(path, model={name!r}) or vitrail.load('hf-hub:owner/name')"
        + (f". Published for {found}: {published}" if published else "")
    )


def _preset_name(name: str) -> str | None:
    """The preset of a name of vitrail or timm, ignoring the suffixes for image size and training."""
    bare = name.split(".", maxsplit=1)[0]
    return next((each for each in (bare, re.sub(r"_\d{2,4}$", "", bare)) if each in presets()), None)


def _named(name: str) -> tuple[Family, BackboneConfig] | None:
    if (found := _preset_name(name)) is None:
        return None
    family = next(family for family in FAMILIES.values() if found in family.presets)
    config = family.presets[found].config
    # timm adds the image size and, after a dot, how the weights were trained.
    size = name.split(".", maxsplit=1)[0].removeprefix(found).removeprefix("_")
    return family, apply(config, {"image_size": int(size)}) if size else config
