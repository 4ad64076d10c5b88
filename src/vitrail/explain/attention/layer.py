"""The attention layers of a model."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.errors import Unsupported
from vitrail.explain.attention.subsampled import Subsampled
from vitrail.explain.unwrap import unwrapped
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
    def hooked(self) -> nn.Module:
        """The module that runs inside the model, where hooks go."""
        return self.module.inner if isinstance(self.module, Subsampled) else self.module

    @property
    def residual(self) -> bool:
        """Whether the result is added to the tokens; between LeViT's stages it replaces them."""
        return not isinstance(self.module, Subsampled)

    def query_tokens(self, num_tokens: int, grid: Grid) -> Tensor:
        """The tokens that are queries, R of P+N: all; between LeViT's stages every other row and column."""
        return self.module.query_patches(grid) if isinstance(self.module, Subsampled) else torch.arange(num_tokens)


def has_class_token(model: nn.Module) -> bool:
    """Whether some layer of the model has a class token, which is its first token."""
    return any(isinstance(part, PrefixTokens) and part.class_token is not None for part in model.modules())


def prefix_names(model: nn.Module, count: int) -> tuple[str, ...]:
    """Names of the first `count` tokens of a layer."""
    prefix = next((part for part in model.modules() if isinstance(part, PrefixTokens)), None)
    names = ["class token"] if prefix is None or prefix.class_token is not None else []
    if prefix is not None and prefix.distillation_token is not None:
        names.append("distillation token")
    return tuple((names + [f"register {number + 1}" for number in range(count)])[:count])


def attention_layers(model: nn.Module) -> list[AttentionLayer]:
    """All attention layers of a model in the order of execution; Unsupported if it has none."""
    model = unwrapped(model)
    backbone = next((part for part in model.modules() if isinstance(part, Backbone)), None)
    levels: dict[nn.Module, int] = {}
    for level, part in enumerate(() if backbone is None else backbone.levels):
        levels |= dict.fromkeys(part.modules(), level)
    layers: list[tuple[str, Attention, int]] = []
    for name, module in model.named_modules():
        if isinstance(module, SubsampledAttention):
            layers.append((name, Subsampled(module), levels.get(module, 0)))
        elif isinstance(module, Attention) and module.num_heads:
            layers.append((name, module, levels.get(module, 0)))
    if not layers:
        raise Unsupported(f"{type(backbone or model).__name__} has no attention layers")
    return [AttentionLayer(index, *layer) for index, layer in enumerate(layers)]
