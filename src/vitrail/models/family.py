"""The entry of a model family in the registry."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from vitrail.models.backbone import BackboneConfig


class Preset(NamedTuple):
    """A named size, and the published weights for it."""

    config: BackboneConfig
    weights: str = ""


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family, one file in `models/`: how its models are configured, built and named."""

    name: str
    config: type[BackboneConfig]
    module: Any  # a Backbone, built from its own config class
    paper: str
    idea: str  # in two sentences
    use: str  # when to choose it
    presets: Mapping[str, Preset]
