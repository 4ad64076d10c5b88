"""vitrail: vision transformers, whole.

    import vitrail
    model = vitrail.create("vit_small_patch16", num_classes=10)

Names are imported on first use, so that `import vitrail` alone does not load torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail import errors as errors
    from vitrail import explain as explain
    from vitrail.models.backbone import Features as Features
    from vitrail.models.checkpoint import convert as convert
    from vitrail.models.checkpoint import load as load
    from vitrail.models.checkpoint import save as save
    from vitrail.models.registry import create as create
    from vitrail.models.registry import list_models as list_models
    from vitrail.profiling.describe import describe as describe
    from vitrail.training.run import train as train
    from vitrail.training.trained import open_trained as open_trained

__version__ = "0.1.0"

_HOMES = {
    "Features": "vitrail.models.backbone",
    "convert": "vitrail.models.checkpoint",
    "create": "vitrail.models.registry",
    "describe": "vitrail.profiling",
    "errors": "vitrail",
    "explain": "vitrail",
    "list_models": "vitrail.models.registry",
    "load": "vitrail.models.checkpoint",
    "open_trained": "vitrail.training.trained",
    "save": "vitrail.models.checkpoint",
    "train": "vitrail.training.run",
}

__all__ = [*_HOMES, "__version__"]  # noqa: PLE0604  (all strings)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitrail' has no attribute {name!r}")
    if _HOMES[name] == "vitrail":
        return importlib.import_module(f"vitrail.{name}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
