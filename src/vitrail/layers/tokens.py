"""Prefix tokens: class, distillation and register tokens, in this order before the patches."""

import torch
from torch import Tensor, nn


class PrefixTokens(nn.Module):
    """Prepends learned tokens to the patches: B N D -> B P+N D.

    Class token: arXiv:2010.11929; distillation token: arXiv:2012.12877; registers: arXiv:2309.16588.
    """

    def __init__(self, dim: int, *, class_token: bool, distillation: bool = False, registers: int = 0) -> None:
        super().__init__()
        self.count = int(class_token) + int(distillation) + registers
        self.class_token = nn.Parameter(torch.zeros(1, dim)) if class_token else None
        self.distillation_token = nn.Parameter(torch.zeros(1, dim)) if distillation else None
        self.registers = nn.Parameter(torch.zeros(registers, dim)) if registers else None

    def forward(self, patches: Tensor) -> Tensor:
        """B N D -> B P+N D."""
        tokens = [self.class_token, self.distillation_token, self.registers]
        prefix = [token.expand(patches.shape[0], -1, -1) for token in tokens if token is not None]  # B . D each
        return torch.cat([*prefix, patches], dim=1) if prefix else patches
