"""Muon: the momentum of every matrix is replaced by the nearest orthogonal one before it is taken as a step."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate
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
        # As Nesterov looks ahead; in place of the gradients, since torch 2.11 makes no new tensors of shards this way.
        torch._foreach_lerp_(gradients, moments, beta)
        steps = _all_steps(gradients, group["parts"])
        torch._foreach_mul_(steps, rate)
        torch._foreach_mul_(parameters, 1 - rate * group["weight_decay"])
        torch._foreach_sub_(parameters, steps)


def _all_steps(matrices: Sequence[Tensor], parts: int) -> list[Tensor]:
    """The step of each matrix; those that are sharded are gathered one after the other, to save memory."""
    if any(isinstance(matrix, DTensor) for matrix in matrices):
        return [_sharded_step(matrix, parts) for matrix in matrices]
    return _orthogonal_all(matrices, parts)


def _sharded_step(matrix: Tensor, parts: int) -> Tensor:
    """The step of a matrix whose rows lie in several processes: each turns the whole and keeps its own rows."""
    assert isinstance(matrix, DTensor)  # noqa: S101  (a sharded model has no others)
    (whole,) = _all_steps([matrix.full_tensor()], parts)
    everywhere = DTensor.from_local(whole, matrix.device_mesh, [Replicate()] * matrix.device_mesh.ndim, run_check=False)
    return everywhere.redistribute(placements=matrix.placements)


def _orthogonal_all(matrices: Sequence[Tensor], parts: int) -> list[Tensor]:
    """Orthogonal matrices of the size of an AdamW step, each cut into parts first; a convolution is a matrix O (I h w).

    Those of one shape, lying or standing, are turned at once: a GPU waits for launches here, not for products.
    """
    alike: dict[tuple[int, int], list[int]] = {}  # shape -> which have it
    flat = [matrix.flatten(1) for matrix in matrices]
    for index, matrix in enumerate(flat):
        alike.setdefault((matrix.shape[0], matrix.shape[1]), []).append(index)
    lying: dict[tuple[int, int], dict[tuple[int, int], Tensor]] = {}  # short, long -> shape -> M short long
    for shape, members in alike.items():
        cut = torch.stack([flat[index] for index in members]).unflatten(1, (parts, -1)).flatten(0, 1)
        short, long = sorted(cut.shape[1:])
        lying.setdefault((short, long), {})[shape] = cut if cut.shape[1] == short else cut.mT
    found: dict[int, Tensor] = {}
    for (short, long), pieces in lying.items():
        turned = orthogonal(torch.cat([*pieces.values()])) * (_RMS * long**0.5)
        for shape, piece in zip(pieces, turned.split([len(piece) for piece in pieces.values()]), strict=True):
            whole = (piece if shape[0] == short * parts else piece.mT).reshape(-1, *shape).contiguous()
            found |= zip(alike[shape], whole.unbind(), strict=True)
    return [found[index].view_as(matrix) for index, matrix in enumerate(matrices)]


def orthogonal(matrices: Tensor) -> Tensor:
    """Each matrix, not taller than wide, with its singular values scaled to about one: M short long -> the same."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    a, b, c = _QUINTIC
    for _ in range(_TURNS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.to(matrices.dtype)
