"""Muon: the momentum of every matrix is replaced by the nearest orthogonal one before it is taken as a step."""

from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW

_QUINTIC = (3.4445, -4.7750, 2.0315)  # of Jordan's iteration: fast, to within 0.3 of one for each singular value
_TURNS = 5
_RMS = 0.2  # of an AdamW step: with it both learn by the same rate (arXiv:2502.16982)


class Muon(AdamW):
    """Muon (Jordan et al. 2024) for the groups with `matrices`, AdamW for all others, at one learning rate.

    `parts` of a group says into how many maps its matrices are cut first: three for queries, keys and values.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step of both; the loss is not evaluated anew."""
        every = self.param_groups
        self.param_groups = [group for group in every if not group["matrices"]]
        super().step()
        self.param_groups = every
        for group in every:
            if group["matrices"]:
                self._turn([parameter for parameter in group["params"] if parameter.grad is not None], group)

    def _turn(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """One step of all matrices of a group."""
        beta, rate = group["betas"][0], group["lr"]
        for parameter in parameters:
            self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        moments = [self.state[parameter]["momentum"] for parameter in parameters]
        torch._foreach_lerp_(moments, gradients, 1 - beta)
        ahead = torch._foreach_lerp(gradients, moments, beta)  # as Nesterov looks
        parts = [part for matrix in ahead for part in matrix.chunk(group["parts"])]
        turned = iter(_orthogonal_all(parts))
        steps = [torch.cat([next(turned) for _ in range(group["parts"])]) for _ in parameters]
        torch._foreach_mul_(steps, rate)
        torch._foreach_mul_(parameters, 1 - rate * group["weight_decay"])
        torch._foreach_sub_(parameters, steps)


def _orthogonal_all(matrices: list[Tensor]) -> list[Tensor]:
    """Orthogonal matrices of the size of an AdamW step; those of one shape, lying or standing, are turned at once."""
    found: dict[int, Tensor] = {}
    shapes: dict[tuple[int, ...], list[int]] = {}
    for index, matrix in enumerate(matrices):
        shapes.setdefault(tuple(sorted(matrix.shape)), []).append(index)
    for (_, longer), members in shapes.items():
        lying = torch.stack([_lying(matrices[index]) for index in members])  # M short long
        turned = orthogonal(lying) * (_RMS * longer**0.5)
        found |= zip(members, turned.unbind(), strict=True)
    return [found[index] if _lies(matrix) else found[index].mT for index, matrix in enumerate(matrices)]


def _lies(matrix: Tensor) -> bool:
    return matrix.shape[0] <= matrix.shape[1]


def _lying(matrix: Tensor) -> Tensor:
    return matrix if _lies(matrix) else matrix.mT


def orthogonal(matrices: Tensor) -> Tensor:
    """Each matrix, not taller than wide, with its singular values brought to about one: M short long -> the same."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    a, b, c = _QUINTIC
    for _ in range(_TURNS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.to(matrices.dtype)
