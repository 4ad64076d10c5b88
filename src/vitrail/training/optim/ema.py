"""A running average of the weights, which is evaluated and kept in their place (Polyak averaging)."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


class Average:
    """The average of a module's parameters and buffers; a young one forgets faster, by (1 + n) / (10 + n) at most.

    `updates` counts the steps; with `values` it is everything that a resumed run needs.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.module, self.decay, self.updates = module, decay, 0
        self.values: dict[str, Tensor] = {name: tensor.clone() for name, tensor in averaged(module).items()}

    @torch.no_grad()
    def update(self) -> None:
        """Takes in the module's present weights."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        now = averaged(self.module)
        mine = [name for name, value in self.values.items() if value.is_floating_point()]
        torch._foreach_lerp_([_local(self.values[n]) for n in mine], [_local(now[n]) for n in mine], 1 - decay)
        for name in self.values.keys() - set(mine):
            self.values[name].copy_(now[name])

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """The module with the average in place of its own weights, which come back afterwards."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, tensor in averaged(self.module).items():
            own, average = _local(tensor), _local(self.values[name])
            kept = own.clone()
            own.copy_(average)
            average.copy_(kept)


def averaged(module: nn.Module) -> dict[str, Tensor]:
    """Parameters that learn, and buffers that are saved, by name; they share the module's memory."""
    frozen = {name for name, parameter in module.named_parameters() if not parameter.requires_grad}
    return {name: tensor.detach() for name, tensor in module.state_dict().items() if name not in frozen}


def _local(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
