"""Pictures through the eyes of a model: what it says, what its layers attend to, what methods show, how true it is.

views = look(trained.task, trained.prepare, pictures, model="runs/my-run", methods=("relevance", "rollout"))
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from vitrail.errors import Unsupported
from vitrail.explain.capture import Seen, capture
from vitrail.explain.faithfulness import areas, baselines, pointing
from vitrail.explain.layer import attention_layers
from vitrail.explain.method import classes, evaluating
from vitrail.explain.page import Score, View
from vitrail.explain.page_encode import LayerView, group
from vitrail.explain.pictures import Picture
from vitrail.explain.randomisation import rank_correlations, shuffled
from vitrail.explain.saliency import method_of, methods, saliency
from vitrail.layers.tokens import PrefixTokens
from vitrail.models.backbone import Backbone
from vitrail.tasks.task import Task

MOST_CELLS = 16  # a side; finer grids are shown in cells of several patches
USUAL = ("relevance", "attention", "rollout", "grad_cam", "gradient")  # methods that take a pass or two


def usual_methods(model: Backbone) -> list[str]:
    """The quick methods that make sense for a model; where none of them does, all that do."""
    with evaluating(model):
        return [name for name in USUAL if method_of(name).refusal(model) is None] or methods(model)


def look(
    task: Task,
    prepare: Callable[[Tensor], Tensor],
    pictures: Sequence[Picture],
    *,
    model: str,
    methods: Sequence[str] | None = None,
    target: str | None = None,
    layers: Sequence[int] | None = None,
    attention: bool = True,
    top: int = 5,
    steps: int = 32,
) -> Iterator[View]:
    """Each picture in turn: answers, saliency of the chosen methods for a class, their scores, and attention.

    `prepare` makes the model's input of uint8 images; `methods` are the usual ones by default, `target` is the class
    that is predicted, `layers` all that have attention. Without `attention` none is read; `steps` are those
    of the curves of insertion and deletion.
    """
    backbone = task.backbone
    with evaluating(task):
        chosen = usual_methods(backbone) if methods is None else [_sensible(name, backbone) for name in methods]
        if attention and layers is not None:
            with capture(backbone, layers=layers):
                pass  # a layer that is not there, and a model without attention, are told before the work begins
        forgetful = shuffled(backbone)
        for picture in pictures:
            images = prepare(picture.pixels[None].to(next(task.parameters()).device))  # 1 C H W
            number = classes(backbone, images, target)
            with torch.no_grad():
                likely = task.predict(images)["probabilities"][0]
            best = likely.argsort(descending=True)[:top].tolist()
            maps = {name: saliency(backbone, images, name, number) for name in chosen}
            seen, why = attended(backbone, images, layers) if attention else ([], "")
            yield View(
                model=model,
                picture=picture.name,
                image=picture.shown,
                answers=[(task.classes[label], float(likely[label])) for label in best],
                target=task.classes[int(number)],
                maps={name: found[0] for name, found in maps.items()},
                classless=[name for name in chosen if not method_of(name).targeted],
                scores=scored(backbone, images, maps, number, forgetful=forgetful, mask=picture.mask, steps=steps),
                layers=seen,
                why=why,
            )


def _sensible(name: str, model: Backbone) -> str:
    """A method that exists and makes sense for a model; otherwise a sentence why not."""
    if why := method_of(name).refusal(model):
        raise Unsupported(why)
    return name


def attended(model: Backbone, image: Tensor, layers: Sequence[int] | None = None) -> tuple[list[LayerView], str]:
    """The attention of all layers, or the chosen ones, for one image 1 C H W; and why some have none."""
    try:
        every = attention_layers(model)
        with torch.no_grad(), capture(model, layers=layers) as seen:
            model(image)
    except Unsupported as error:
        if layers is not None:
            raise
        return [], f"{_sentence(error)} Methods that need no attention are shown."
    found, missing = list[LayerView](), dict[str, list[int]]()
    for index in seen.layers:
        try:
            found.append(_layer(model, seen, index, every[index].name))
        except Unsupported as error:
            if layers is not None:
                raise
            missing.setdefault(_sentence(error), []).append(index)
    told = [f"{'Layer' if len(which) == 1 else 'Layers'} {_listed(which)}: {text}" for text, which in missing.items()]
    return found, " ".join(told)


def _layer(model: Backbone, seen: Seen, index: int, name: str) -> LayerView:
    """One layer's attention in at most 16 x 16 cells, summed up chunk by chunk of rows: no N x N is held."""
    grid, prefix = seen.grid[index], seen.num_prefix[index]
    step = -(-max(grid) // MOST_CELLS)
    groups = group(grid, step)  # N
    cells = int(groups.max()) + 1
    place = torch.cat([torch.arange(prefix), prefix + groups]).to(seen.tokens[index].device)  # P+N: the row of a token
    size = torch.bincount(place).float()[:, None]  # P+G 1
    weights = torch.zeros(seen.layers[index].module.num_heads, prefix + cells, prefix + cells, device=place.device)
    for chunk in seen.chunks(index):
        keys = weights.new_zeros(*chunk.attention.shape[1:3], prefix + cells)  # A R P+G
        keys.index_add_(2, place, chunk.attention[0])
        weights.index_add_(1, place[chunk.rows], keys)
    return LayerView(
        number=index,
        name=name,
        grid=grid,
        step=step,
        prefix=prefix_names(model, prefix),
        weights=(weights / size).half(),
    )


def prefix_names(model: Backbone, count: int) -> tuple[str, ...]:
    """What the first tokens of a layer are called."""
    known = next((part for part in model.modules() if isinstance(part, PrefixTokens)), None)
    names = ["class token"] if known is None or known.class_token is not None else []
    if known is not None and known.distillation_token is not None:
        names.append("distillation token")
    return tuple((names + [f"register {number + 1}" for number in range(count)])[:count])


def scored(
    model: Backbone,
    images: Tensor,
    maps: Mapping[str, Tensor],
    target: Tensor,
    *,
    forgetful: Backbone,
    mask: Tensor | None = None,
    steps: int,
) -> dict[str, Score]:
    """How true each method's map 1 H W of one image is, and how true maps are that know nothing of the model.

    `forgetful` is the model with its weights shuffled, `mask` H W says where the object is.
    """
    blind = baselines(images)
    every = torch.cat([found.to(images.device) for found in (*maps.values(), *blind.values())])  # M H W
    many = images.expand(len(every), -1, -1, -1)
    deletion, insertion = areas(model, many, every, target.expand(len(every)), steps=steps)
    alike = dict.fromkeys(blind, 1.0) | {  # what knows nothing of the model stays as it is
        name: rank_correlations(found, saliency(forgetful, images, name, target)).item() for name, found in maps.items()
    }
    hits = None if mask is None else pointing(every, mask.to(every.device).expand_as(every)).tolist()
    return {
        name: Score(
            insertion[at].item(),
            deletion[at].item(),
            baseline=name in blind,
            shuffled=alike[name],
            pointing=None if hits is None else hits[at],
        )
        for at, name in enumerate((*maps, *blind))
    }


def _sentence(error: Exception) -> str:
    text = str(error)
    return f"{text[0].upper()}{text[1:].rstrip('.')}."


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(str(number) for number in numbers)
