"""LoRA: low-rank updates of frozen linear maps (Hu et al. 2021, arXiv:2106.09685)."""

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import ConfigError, nearest
from vitrail.layers.batch_norm import freeze_statistics

TARGETS = ("qkv", "projection", "fc1", "fc2")
HEADS = ("head", "distillation_head")

M = TypeVar("M", bound=nn.Module)


class LoRALinear(nn.Linear):
    """x W^T + b + (alpha / rank) x A^T B^T: ... D -> ... E; W and b keep their names, B is initially zero."""

    def __init__(self, linear: nn.Linear, *, rank: int, alpha: float) -> None:
        nn.Module.__init__(self)  # reuses the weights of the linear map
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.scale = alpha / rank
        self.lora_a = nn.Parameter(linear.weight.new_empty(rank, linear.in_features))
        self.lora_b = nn.Parameter(linear.weight.new_zeros(linear.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))
        self.train(linear.training)

    def forward(self, tokens: Tensor) -> Tensor:
        """... D -> ... E."""
        update = F.linear(F.linear(tokens, self.lora_a), self.lora_b)
        return super().forward(tokens) + self.scale * update

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """A plain linear map with the update added to its weight."""
        plain = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None, device="meta")
        update = self.scale * (self.lora_b.double() @ self.lora_a.double())
        plain.weight = nn.Parameter((self.weight.double() + update).to(self.weight.dtype))
        if self.bias is not None:
            plain.bias = nn.Parameter(self.bias.detach())
        return plain.train(self.training)


def add_lora(model: M, rank: int, *, alpha: float | None = None, targets: Sequence[str] = TARGETS) -> M:
    """Adds LoRA to all linear maps with the names `targets`, in place; all other weights but the heads are frozen.

    The output is initially unchanged, and all tensors of the model keep their names. The statistics of batch norms are
    frozen too. The default of `alpha` is the rank, which means a scale of 1.
    """
    if rank < 1:
        raise ConfigError(f"the LoRA rank is {rank}; it must be 1 or more")
    if any(isinstance(module, LoRALinear) for module in model.modules()):
        raise ConfigError("the model already has LoRA layers; call merge_lora(model) first")
    linears = {name: module for name, module in model.named_modules() if type(module) is nn.Linear}
    known = {name.rpartition(".")[2] for name in linears} - set(HEADS)
    for target in targets:
        if target not in known and target not in TARGETS:
            raise ConfigError(f"the model has no linear layer named {target!r}; {nearest(target, known)}")
    chosen = {name: linear for name, linear in linears.items() if name.rpartition(".")[2] in targets}
    if not chosen:
        raise ConfigError(f"the model has no linear layer named {' or '.join(targets)}; {nearest(targets[0], known)}")
    model.requires_grad_(False)
    for name, linear in chosen.items():
        _replace(model, name, LoRALinear(linear, rank=rank, alpha=rank if alpha is None else alpha))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith((".lora_a", ".lora_b")) or bool({*HEADS} & {*name.split(".")}))
    freeze_statistics(model)
    return model


def merge_lora(model: M) -> M:
    """Merges all updates into the weights, in place: plain linear maps with the same output and the same names."""
    for name, module in list(model.named_modules()):
        if isinstance(module, LoRALinear):
            _replace(model, name, module.merged())
    return model


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)
