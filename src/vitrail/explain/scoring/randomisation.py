"""The parameter randomisation test: maps of a model with shuffled parameters should differ (arXiv:1810.03292)."""

import copy
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from vitrail.models.backbone import Backbone

HEAD = ("head", "distillation_head", "pool", "pool_norm", "norm")  # modules after the blocks


def cascade(model: Backbone) -> Iterator[tuple[str, list[nn.Parameter]]]:
    """The parts of a model from the head to the embedding, each with the parameters that no part before it has."""
    taken: set[int] = set()

    def not_taken(parameters: Iterator[nn.Parameter]) -> list[nn.Parameter]:
        new = [one for one in parameters if id(one) not in taken]
        taken.update(id(one) for one in new)
        return new

    inside = {id(one) for one in model.blocks.parameters()}
    tops = [child for name, child in model.named_children() if name in HEAD]
    if head := not_taken(one for child in tops for one in child.parameters() if id(one) not in inside):
        yield "head", head
    for index in reversed(range(len(model.blocks))):
        if block := not_taken(model.blocks[index].parameters()):
            yield f"block {index}", block
    if rest := not_taken(model.parameters()):
        yield "embedding", rest


def shuffle_parts(model: Backbone, *, seed: int = 0) -> Iterator[tuple[str, Backbone]]:
    """A copy of the model in which the values of each parameter are shuffled, part after part.

    Each parameter keeps its distribution, so that what is lost is what was learned and not the scale of activations.
    """
    copied = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    for name, parameters in cascade(copied):
        with torch.no_grad():
            for one in parameters:
                order = torch.randperm(one.numel(), generator=generator).to(one.device)
                one.copy_(one.flatten()[order].view_as(one))
        yield name, copied


def shuffled(model: Backbone, *, seed: int = 0) -> Backbone:
    """A copy of the model with all parameters shuffled."""
    *_, (_, copied) = shuffle_parts(model, seed=seed)
    return copied


def rank_correlations(first: Tensor, second: Tensor) -> Tensor:
    """Spearman's rank correlation of two maps, B H W each -> B; 0 if one of them is constant."""
    centred = []
    for maps in (first, second):
        ranked = torch.stack([_ranks(one) for one in maps.flatten(1)])
        centred.append(ranked - ranked.mean(dim=1, keepdim=True))
    scale = centred[0].norm(dim=1) * centred[1].norm(dim=1)
    return torch.where(scale > 0, (centred[0] * centred[1]).sum(dim=1) / scale.clamp(min=1e-12), 0.0)


def _ranks(values: Tensor) -> Tensor:
    """The rank of each value, N -> N; equal values share the mean of their ranks."""
    _, group, sizes = values.nan_to_num().unique(return_inverse=True, return_counts=True)
    ends = sizes.cumsum(dim=0).double()
    return (ends - (sizes - 1) / 2)[group]


def randomisation(
    model: Backbone, maps: Tensor, explain: Callable[[Backbone], Tensor], *, seed: int = 0
) -> Iterator[tuple[str, Tensor]]:
    """Correlations B of the maps B H W of a model with those of its copy, as part after part is shuffled."""
    for name, copied in shuffle_parts(model, seed=seed):
        yield name, rank_correlations(maps, explain(copied))
