"""The attention layers that a model has, inside the wrappers of torch.compile and of distributed training."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.errors import InputError, Unsupported
from vitrail.explain.subsampled import Subsampled
from vitrail.layers.attention import Attention, SubsampledAttention
from vitrail.layers.patch import Grid
from vitrail.layers.tokens import PrefixTokens
from vitrail.models.backbone import Backbone


@dataclass(frozen=True)
class AttentionLayer:
    """One attention layer of a model."""

    index: int  # in the order of execution
    name: str  # of the module in the model
    module: Attention
    level: int  # of the pyramid, fine to coarse

    @property
    def place(self) -> nn.Module:
        """The module of the model that runs."""
        return self.module.inner if isinstance(self.module, Subsampled) else self.module

    @property
    def residual(self) -> bool:
        """Whether what the layer says is added to its tokens; between stages it takes their place."""
        return not isinstance(self.module, Subsampled)

    def asking(self, num_tokens: int, grid: Grid) -> Tensor:
        """The tokens that ask, R of P+N: all of them; between stages every other row and column."""
        return self.module.asking(grid) if isinstance(self.module, Subsampled) else torch.arange(num_tokens)


def eager(model: nn.Module) -> nn.Module:
    """The model inside the wrappers of torch.compile and of distributed training."""
    if not isinstance(model, nn.Module):
        raise InputError(f"the model is a {type(model).__name__}; it must be a module, as vitrail.create gives one")
    inner = model._modules.get("_orig_mod") or model._modules.get("module")
    return model if inner is None else eager(inner)


def is_compiled(model: nn.Module) -> bool:
    """Whether a model or a part of it was compiled, so that hooks inside it may not be called."""
    return any("_orig_mod" in part._modules or part._compiled_call_impl is not None for part in model.modules())


def has_class_token(model: nn.Module) -> bool:
    """Whether some layer of the model has a class token, which is its first."""
    return any(isinstance(part, PrefixTokens) and part.class_token is not None for part in model.modules())


def attention_layers(model: nn.Module) -> list[AttentionLayer]:
    """Every attention layer of a model, in the order of execution; Unsupported, where it has none."""
    model = eager(model)
    backbone = next((part for part in model.modules() if isinstance(part, Backbone)), None)
    levels: dict[nn.Module, int] = {}
    for level, part in enumerate(() if backbone is None else backbone.levels):
        levels |= dict.fromkeys(part.modules(), level)
    found: list[tuple[str, Attention, int]] = []
    for name, module in model.named_modules():
        if isinstance(module, SubsampledAttention):
            found.append((name, Subsampled(module), levels.get(module, 0)))
        elif isinstance(module, Attention) and module.num_heads:
            found.append((name, module, levels.get(module, 0)))
    if not found:
        raise Unsupported(f"{type(backbone or model).__name__} has no attention to look at")
    return [AttentionLayer(index, *one) for index, one in enumerate(found)]
