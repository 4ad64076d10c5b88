"""The parameter-randomisation test: a map that stays as a model forgets does not show it (arXiv:1810.03292)."""

import copy
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from vitrail.models.backbone import Backbone

HEAD = ("head", "distillation_head", "pool", "pool_norm", "norm")  # parts that stand after the blocks


def cascade(model: Backbone) -> Iterator[tuple[str, list[nn.Parameter]]]:
    """The parts of a model from the head down to the pixels, each with the parameters that no part before it has."""
    taken: set[int] = set()

    def fresh(parameters: Iterator[nn.Parameter]) -> list[nn.Parameter]:
        found = [one for one in parameters if id(one) not in taken]
        taken.update(id(one) for one in found)
        return found

    inside = {id(one) for one in model.blocks.parameters()}
    tops = [child for name, child in model.named_children() if name in HEAD]
    head = fresh(one for child in tops for one in child.parameters() if id(one) not in inside)
    if head:
        yield "head", head
    for index in reversed(range(len(model.blocks))):
        if found := fresh(model.blocks[index].parameters()):
            yield f"block {index}", found
    if rest := fresh(model.parameters()):
        yield "embedding", rest


def randomised(model: Backbone, *, seed: int = 0) -> Iterator[tuple[str, Backbone]]:
    """A copy of the model that forgets part after part: the values of each parameter change places among themselves.

    Each parameter keeps its scale, so that what changes is what was learned and not the size of the activations.
    """
    forgetful = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    for name, parameters in cascade(forgetful):
        with torch.no_grad():
            for one in parameters:
                places = torch.randperm(one.numel(), generator=generator).to(one.device)
                one.copy_(one.flatten()[places].view_as(one))
        yield name, forgetful


def shuffled(model: Backbone, *, seed: int = 0) -> Backbone:
    """A copy of the model that has forgotten everything."""
    *_, (_, forgetful) = randomised(model, seed=seed)
    return forgetful


def rank_correlations(first: Tensor, second: Tensor) -> Tensor:
    """Spearman's correlation of two maps, B H W each -> B; 0 where one of them is flat, or no number at all."""
    centred = []
    for maps in (first, second):
        ranks = torch.stack([_ranks(one) for one in maps.flatten(1)])
        centred.append(ranks - ranks.mean(dim=1, keepdim=True))
    scale = centred[0].norm(dim=1) * centred[1].norm(dim=1)
    return torch.where(scale > 0, (centred[0] * centred[1]).sum(dim=1) / scale.clamp(min=1e-12), 0.0)


def _ranks(values: Tensor) -> Tensor:
    """The place of each value among all, N -> N; equal ones share the mean of theirs."""
    _, group, sizes = values.nan_to_num().unique(return_inverse=True, return_counts=True)
    ends = sizes.cumsum(dim=0).double()
    return (ends - (sizes - 1) / 2)[group]


def randomisation(
    model: Backbone, maps: Tensor, explain: Callable[[Backbone], Tensor], *, seed: int = 0
) -> Iterator[tuple[str, Tensor]]:
    """How alike the maps B H W of a model and those of its forgetful copy are, part after part: correlations B each."""
    for name, forgetful in randomised(model, seed=seed):
        yield name, rank_correlations(maps, explain(forgetful))
