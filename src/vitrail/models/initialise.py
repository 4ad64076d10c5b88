"""The published initialisations of vision transformers."""

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.init import constant_, kaiming_uniform_, normal_, trunc_normal_, uniform_, xavier_uniform_, zeros_
from torch.overrides import TorchFunctionMode

from vitrail.layers.pool import AttentionPool
from vitrail.layers.position import FactoredPosition, LearnedPosition
from vitrail.layers.tokens import PrefixTokens

Scheme = Literal["paper", "trunc_normal"]
_DRAWS = {normal_, uniform_, kaiming_uniform_, Tensor.normal_, Tensor.uniform_, Tensor.erfinv_}


def initialise(model: nn.Module, scheme: Scheme, name: str = "") -> None:
    """Initialises a model, or the part of one with the path `name`.

    "paper": Xavier-uniform linear maps, LeCun-normal patches, a zero head (arXiv:2010.11929 and its JAX code).
    "trunc_normal": a truncated normal with std 0.02 for linear maps, tokens and positions (DeiT, arXiv:2012.12877).
    """
    for path, module in model.named_modules(prefix=name):
        if isinstance(module, nn.Linear):
            _linear(module, path, scheme)
        elif isinstance(module, nn.Conv2d) and scheme == "paper":
            fan_in = module.in_channels * module.kernel_size[0] * module.kernel_size[1]
            std = math.sqrt(1 / fan_in) / 0.87962566103423978  # std of a normal truncated at 2 std
            trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
            if module.bias is not None:
                zeros_(module.bias)
        elif isinstance(module, LearnedPosition):
            normal_(module.table, std=0.02) if scheme == "paper" else trunc_normal_(module.table, std=0.02)
        elif isinstance(module, FactoredPosition):
            normal_(module.rows, std=0.02)
            normal_(module.columns, std=0.02)
        elif isinstance(module, PrefixTokens):
            for token in module.parameters():
                zeros_(token) if scheme == "paper" else trunc_normal_(token, std=0.02)
        elif isinstance(module, AttentionPool):
            xavier_uniform_(module.query)


def initialise_convolutions(model: nn.Module, *, std: float | None = None) -> None:
    """Initialises convolutions with a normal of variance 2 / fan-out, for ReLU (arXiv:1502.01852).

    With `std`, with a truncated normal of this standard deviation instead.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            if std is None:
                fan_out = module.out_channels * module.kernel_size[0] * module.kernel_size[1] // module.groups
                normal_(module.weight, std=math.sqrt(2 / fan_out))
            else:
                trunc_normal_(module.weight, std=std)
            if module.bias is not None:
                zeros_(module.bias)


@torch.no_grad()
def _linear(module: nn.Linear, path: str, scheme: Scheme) -> None:
    if scheme == "trunc_normal":
        trunc_normal_(module.weight, std=0.02)
    elif path.rsplit(".", maxsplit=1)[-1].endswith("head"):
        zeros_(module.weight)
    else:
        # The parts of a combined projection are initialised as separate maps.
        for part in module.weight.chunk({"qkv": 3, "kv": 2}.get(path.rsplit(".", maxsplit=1)[-1], 1)):
            xavier_uniform_(part)
    if module.bias is not None:
        if scheme == "paper" and ".mlp." in path:
            normal_(module.bias, std=1e-6)
        else:
            constant_(module.bias, 0.0)


class SkipInit(TorchFunctionMode):
    """In this context, random initialisation only writes zeros: faster, for weights that are loaded later."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls the function; a random fill writes zeros, which are within the bounds of any truncated distribution."""
        if func in _DRAWS:
            with torch.no_grad():
                return (args[0] if args else (kwargs or {})["tensor"]).zero_()
        return func(*args, **(kwargs or {}))
