"""vitrail: vision transformers, from a folder of images to a served model.

    import vitrail
    model = vitrail.create("vit_small_patch16", num_classes=10)   # a backbone
    run = vitrail.train("photos/")                                # a trained model; run.report() writes a page
    vitrail.open("runs/my-run").predict("cat.jpg")

Names are imported on first use, so that `import vitrail` alone does not load torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail import errors as errors
    from vitrail.api import advise as advise
    from vitrail.api import bench as bench
    from vitrail.api import compare as compare
    from vitrail.api import doctor as doctor
    from vitrail.api import evaluate as evaluate
    from vitrail.api import explain as explain
    from vitrail.api import export as export
    from vitrail.api import lab as lab
    from vitrail.api import open as open  # noqa: A004
    from vitrail.api import predict as predict
    from vitrail.api import serve as serve
    from vitrail.api import verify as verify
    from vitrail.models.backbone import Features as Features
    from vitrail.models.checkpoint import convert as convert
    from vitrail.models.checkpoint import load as load
    from vitrail.models.checkpoint import save as save
    from vitrail.models.registry import create as create
    from vitrail.models.registry import list_models as list_models
    from vitrail.profiling.describe import describe as describe
    from vitrail.runs.trained import TrainedModel as TrainedModel
    from vitrail.training.entry import train as train

__version__ = "0.1.0"

_HOMES = {
    "Features": "vitrail.models.backbone",
    "TrainedModel": "vitrail.runs.trained",
    "advise": "vitrail.api",
    "bench": "vitrail.api",
    "compare": "vitrail.api",
    "convert": "vitrail.models.checkpoint",
    "create": "vitrail.models.registry",
    "describe": "vitrail.profiling",
    "doctor": "vitrail.api",
    "errors": "vitrail",
    "evaluate": "vitrail.api",
    "explain": "vitrail",  # a package that can be called, and so are lab and serve
    "export": "vitrail.api",
    "lab": "vitrail",
    "list_models": "vitrail.models.registry",
    "load": "vitrail.models.checkpoint",
    "open": "vitrail.api",
    "predict": "vitrail.api",
    "save": "vitrail.models.checkpoint",
    "serve": "vitrail",
    "train": "vitrail.training.entry",
    "verify": "vitrail.api",
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
