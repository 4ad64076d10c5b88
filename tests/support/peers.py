"""The peers that parity tests import: timm, torchvision and transformers, made loadable beside a CPU-only torch.

torchvision's wheel lacks its compiled operators there, and declaring two of them is enough for its Python part; beside
a CUDA torch it brings its own. This module must be imported before the peers are.
"""

import os

import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")

if torch.version.cuda is None:
    _library = torch.library.Library("torchvision", "DEF")  # kept alive: the operators vanish with it
    _library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import timm
import torchvision
import transformers

__all__ = ["timm", "torchvision", "transformers"]
