"""AdamW or Muon over groups of parameters: what decays, and how fast each layer learns."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from vitrail.errors import TrainingError
from vitrail.layers.pool import AttentionPool
from vitrail.layers.position import Gridded
from vitrail.layers.tokens import PrefixTokens
from vitrail.training.config import OptimiserConfig
from vitrail.training.optim.muon import Muon

_FUSED = ("cuda", "cpu", "mps")  # devices with one kernel for the whole AdamW step
# Everything of a backbone that stands before the first block.
_EMBEDDING = re.compile(r"(^|\.)(patch|prefix|position|embed_norm|stem)\.")
# The outermost block of a name; a task's decoder is as far from the image as a head.
_BLOCK = re.compile(r"^(?!decoder\.)((?:.*?\.)?blocks\.\d+)\.")
_CONV = 4  # dimensions of a convolution's weight
_STAGE = re.compile(r"(^|\.)stages\.\d+\.")


class Learned(NamedTuple):
    """One parameter that learns."""

    name: str
    parameter: nn.Parameter
    decays: bool
    layer: int  # 0 the embedding, i + 1 block i, the last number the head


def learned(module: nn.Module) -> list[Learned]:
    """Every parameter with a gradient, in the order of the module."""
    layers, free = _layers(module), set(_free(module))
    return [
        Learned(name, parameter, parameter.ndim > 1 and name not in free, layers[name])
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    ]


def _free(module: nn.Module) -> Iterator[str]:
    """Matrices that are not weights of a linear map: tokens and positions do not decay, like norms and biases."""
    for path, inner in module.named_modules():
        if isinstance(inner, PrefixTokens | Gridded):
            yield from (f"{path}.{name}" for name, _ in inner.named_parameters(recurse=False))
        elif isinstance(inner, AttentionPool):
            yield f"{path}.query"


def _depth(names: Iterable[str]) -> int:
    return len({match[1] for name in names if (match := _BLOCK.match(name))})


def _layers(module: nn.Module) -> dict[str, int]:
    """The layer of each parameter; what leads from a stage to the next goes with the block that follows it."""
    names = [name for name, _ in module.named_parameters()]
    seen, last, found = dict[str, int](), _depth(names) + 1, dict[str, int]()
    for name in names:
        if block := _BLOCK.match(name):
            found[name] = seen.setdefault(block[1], len(seen) + 1)
        elif _EMBEDDING.search(name):
            found[name] = 0
        else:
            found[name] = min(len(seen) + 1, last) if _STAGE.search(name) else last
    return found


def groups(module: nn.Module, config: OptimiserConfig) -> list[dict[str, Any]]:
    """Parameter groups for AdamW; `scale` is each group's share of the rate, `names` its parameters' names."""
    found: dict[tuple[float, bool, int], dict[str, Any]] = {}
    last = _depth(name for name, _ in module.named_parameters()) + 1
    first = next((name for name, parameter in module.named_parameters() if parameter.ndim == _CONV), None)
    for name, parameter, decays, layer in learned(module):
        scale = 1.0 if config.layer_decay is None else config.layer_decay ** (last - layer)
        decay = config.weight_decay if decays else 0.0
        parts = _parts(name, parameter) if config.kind == "muon" and decays and name != first else 0
        fresh = {"params": [], "names": [], "scale": scale, "lr": config.lr * scale, "weight_decay": decay}
        group = found.setdefault((scale, decays, parts), fresh | {"matrices": parts > 0, "parts": parts})
        group["params"].append(parameter)
        group["names"].append(name)
    if not found:
        raise TrainingError("nothing is left to train: every parameter is frozen")
    return list(found.values())


def _parts(name: str, parameter: nn.Parameter) -> int:
    """Into how many maps Muon cuts a parameter; 0 where it turns none: only matrices of blocks, and convolutions.

    Depthwise convolutions do not count, and the first convolution, which reads pixels, is AdamW's too.
    """
    if parameter.ndim == _CONV:
        return int(parameter.shape[1] > 1)
    if parameter.ndim != 2 or not _BLOCK.match(name):
        return 0
    return 3 if name.endswith("qkv.weight") else 1


def build(module: nn.Module, config: OptimiserConfig, device: torch.device) -> torch.optim.AdamW:
    """The optimiser for everything in a module that learns; fused where the device has such a kernel."""
    fused = device.type in _FUSED
    return (Muon if config.kind == "muon" else torch.optim.AdamW)(
        groups(module, config), lr=config.lr, betas=config.betas, eps=config.eps, fused=fused, foreach=not fused
    )


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Gives each group its share of the rate."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):  # a recorded step reads it there
            group["lr"].fill_(rate * group["scale"])
        else:
            group["lr"] = rate * group["scale"]


def clip(optimiser: torch.optim.Optimizer, limit: float | None) -> Tensor:
    """Scales all gradients down to a norm of at most `limit`; the norm before that, a scalar on the device."""
    every = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    gradients = [parameter.grad for parameter in every if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()  # over all shards
    if limit is not None:
        torch.nn.utils.clip_grads_with_norm_(every, limit, norm)
    return norm
