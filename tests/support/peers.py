"""The peers of parity tests, timm, torchvision and transformers, made loadable beside a CPU-only torch.

torchvision's wheel lacks its compiled operators there, and declaring two of them is enough for its Python part; beside
a CUDA torch it brings its own. This module must be imported before the peers are; each is imported when it is asked
for, so that one is enough for what needs no other.
"""

import importlib
import os
from typing import Any

import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")

if torch.version.cuda is None:
    _library = torch.library.Library("torchvision", "DEF")  # kept alive: the operators vanish with it
    _library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

_PEERS = ("timm", "torchvision", "transformers")


def __getattr__(name: str) -> Any:
    if name not in _PEERS:
        raise AttributeError(f"no peer is called {name}; there are {', '.join(_PEERS)}")
    return importlib.import_module(name)
