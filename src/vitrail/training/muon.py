"""Muon: the momentum of every matrix is replaced by the nearest orthogonal one before it is taken as a step."""

from collections.abc import Iterator
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
                for same in _by_shape(group["params"]):
                    self._turn(same, group)

    def _turn(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """One step of matrices of one shape, all at once."""
        beta, rate = group["betas"][0], group["lr"]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for parameter in parameters:
            self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
        moments = [self.state[parameter]["momentum"] for parameter in parameters]
        torch._foreach_lerp_(moments, gradients, 1 - beta)
        ahead = torch.stack(torch._foreach_lerp(gradients, moments, beta))  # M rows columns, as Nesterov looks
        turned = orthogonal(ahead.unflatten(1, (group["parts"], -1)).flatten(0, 1))  # M*parts rows/parts columns
        step = turned.view_as(ahead) * (rate * _RMS * max(turned.shape[1:]) ** 0.5)
        torch._foreach_mul_(parameters, 1 - rate * group["weight_decay"])
        torch._foreach_sub_(parameters, list(step.unbind()))


def orthogonal(matrices: Tensor) -> Tensor:
    """Each matrix with its singular values brought to about one: M rows columns -> the same."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x.bfloat16() if x.is_cuda else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    a, b, c = _QUINTIC
    for _ in range(_TURNS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if tall else x).to(matrices.dtype)


def _by_shape(parameters: list[Tensor]) -> Iterator[list[Tensor]]:
    shapes: dict[torch.Size, list[Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            shapes.setdefault(parameter.shape, []).append(parameter)
    yield from shapes.values()
