"""Whether a saliency map is true: what the model says as pixels go and come, beside maps that know nothing of it.

report = faithfulness(model, images, {"relevance": saliency(model, images)})
report = faithfulness(model, images, {"relevance": first, "rollout": second, "mine": third}, masks=masks)
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitrail.errors import ConfigError, InputError
from vitrail.explain.method import Method, Target, classes, evaluating
from vitrail.explain.randomisation import randomisation, rank_correlations, shuffled
from vitrail.explain.removal import Baseline, area, curve
from vitrail.explain.saliency import method_of, saliency
from vitrail.explain.subject import subject
from vitrail.models.backbone import Backbone
from vitrail.report import Report, Section, Table, Text, Unit, Value

TOGETHER = 256  # images in one forward pass
_NOTES = (
    "Pixels go, or come, from the most important on, in {steps} steps, and the probability of the class is drawn over "
    "the share of pixels: deletion begins with the image and ends with {deletion}, insertion begins with {insertion} "
    "and ends with the image. The area under the curve is small for deletion and large for insertion where a map is "
    "true. Numbers are medians over {count} images, and their spread is the distance of the quartiles; `random` has "
    "noise for a map, `centre` the nearness to the middle.{shuffled}"
)
_SHUFFLED = (
    " `shuffled` is Spearman's rank correlation with the map of the same model whose parameters have all changed "
    "places: a map that stays as it was, near 1, does not show the model."
)
_NAMELESS = " Named by its method, as in {'relevance': maps}, a map is compared with that of the shuffled model too."
_RANDOMISATION = (
    "Part after part of the model, from the head down, has its parameters shuffled, and the maps are computed anew. "
    "Spearman's rank correlation with the first maps falls towards 0 where a method shows what the model has learned."
)
_BASELINES = {"mean": "its mean colour", "blur": "the blurred image"}


class Areas(NamedTuple):
    """How true the maps of some images are."""

    deletion: Tensor  # B, the less the better
    insertion: Tensor  # B, the more the better


def areas(
    model: nn.Module,
    images: Tensor,
    maps: Tensor,
    target: Target = None,
    *,
    steps: int = 32,
    deletion: Baseline = "blur",
    insertion: Baseline = "blur",
) -> Areas:
    """The areas under the curves of deletion and insertion: images B C H W and maps B H W -> B each.

    Pixels that are not there have those of the blurred image. With "mean" they have the image's mean colour; but a flat
    colour in scattered places makes an image unlike any other, so that even noise then deletes well.
    """
    backbone = subject(model)
    _check(maps, images, "the map")
    if steps < 1:
        raise ConfigError(f"steps is {steps}; it must be 1 or more")
    with evaluating(backbone):
        known = classes(backbone, images, target)
        found: list[list[Tensor]] = [[], []]
        for some, its, which in zip(*(part.split(TOGETHER) for part in (images, maps, known)), strict=True):
            out = curve(backbone, some, its, which, direction="deletion", kind=deletion, steps=steps)
            into = curve(backbone, some, its, which, direction="insertion", kind=insertion, steps=steps)
            found[0].append(area(out))
            found[1].append(area(into))
    return Areas(torch.cat(found[0]), torch.cat(found[1]))


def baselines(images: Tensor, *, seed: int = 0) -> dict[str, Tensor]:
    """Maps that know nothing of a model: noise, and nearness to the middle; B H W each."""
    batch, _, height, width = images.shape
    y, x = (torch.linspace(-1, 1, length) if length > 1 else torch.zeros(1) for length in (height, width))
    noise = torch.rand(batch, height, width, generator=torch.Generator().manual_seed(seed))
    near = -(y[:, None] ** 2 + x**2).expand(batch, -1, -1)
    return {"random": noise.to(images.device), "centre": near.to(images.device)}


def pointing(maps: Tensor, masks: Tensor) -> Tensor:
    """Whether the highest point of each map lies in the object: B H W and B H W bool -> B bool (arXiv:1608.00507)."""
    highest = maps.flatten(1).argmax(dim=1, keepdim=True)
    return masks.flatten(1).gather(1, highest.to(masks.device))[:, 0]


def faithfulness(
    model: nn.Module,
    images: Tensor,
    maps: Tensor | Mapping[str, Tensor],
    *,
    target: Target = None,
    masks: Tensor | None = None,
    randomise: bool = False,
    steps: int = 32,
    deletion: Baseline = "blur",
    insertion: Baseline = "blur",
    seed: int = 0,
) -> Report:
    """How true maps B H W are, by name where there are several, beside the baselines "random" and "centre".

    Maps that have the name of their method are held against those of the model with its parameters shuffled; with
    `randomise` part after part, from the head down. `target` is the class that was explained, as in `saliency`;
    `masks` B H W are true where the object is and add the pointing game.
    """
    backbone, named = subject(model), _named(maps)
    for name, one in named.items():
        _check(one, images, name)
    if masks is not None:
        _check(masks, images, "masks")
    with evaluating(backbone):
        known = classes(backbone, images, target)
    forgetful = shuffled(backbone, seed=seed) if Method.kinds.keys() & named else None
    rows: list[dict[str, Value]] = []
    for name, one in (named | baselines(images, seed=seed)).items():
        found = areas(backbone, images, one, known, steps=steps, deletion=deletion, insertion=insertion)
        row: dict[str, Value] = {"map": name}
        row |= _median("deletion", found.deletion) | _median("insertion", found.insertion)
        if forgetful is not None and name in Method.kinds:
            row["shuffled"] = rank_correlations(one, saliency(forgetful, images, name, known)).median().item()
        if masks is not None:
            row["pointing"] = pointing(one, masks.bool()).float().mean().item()
        rows.append(row)
    columns: dict[str, Unit] = {name: "share" if name == "pointing" else "" for row in rows for name in row}
    notes = _NOTES.format(
        steps=steps,
        deletion=_BASELINES[deletion],
        insertion=_BASELINES[insertion],
        count=len(images),
        shuffled=_NAMELESS if forgetful is None else _SHUFFLED,
    )
    sections: list[Section] = [Table("Deletion and insertion", columns, rows), Text("Notes", notes)]
    if randomise:
        sections += _randomisation(backbone, images, named, known, seed=seed)
    return Report("Faithfulness", tuple(sections))


def _named(maps: Tensor | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Maps by name; one alone is called "map"."""
    if isinstance(maps, Tensor):
        return {"map": maps}
    if not isinstance(maps, Mapping):
        raise InputError(f"maps are a {type(maps).__name__}; they must be a tensor B H W, or several by name")
    for name in maps:
        if name in ("random", "centre"):
            raise ConfigError(f"a map is called {name!r}, which is the name of a baseline; give it another")
    return dict(maps)


def _randomisation(
    model: Backbone, images: Tensor, named: Mapping[str, Tensor], target: Tensor, *, seed: int
) -> list[Section]:
    """How alike maps stay as the model forgets: a column a method, a row a part."""
    table: dict[str, dict[str, Value]] = {}
    if "map" in named:
        raise ConfigError("randomise computes maps anew: name the method of this one, as in {'relevance': maps}")
    for name, maps in named.items():
        explain = partial(saliency, images=images, method=method_of(name), target=target)
        for part, correlations in randomisation(model, maps, explain, seed=seed):
            table.setdefault(part, {"shuffled down to": part})[name] = correlations.median().item()
    columns: dict[str, Unit] = dict.fromkeys(["shuffled down to", *named], "")
    return [Table("Randomisation", columns, list(table.values())), Text("Notes on randomisation", _RANDOMISATION)]


def _median(name: str, values: Tensor) -> dict[str, Value]:
    low, middle, high = torch.quantile(values.float(), values.new_tensor([0.25, 0.5, 0.75]).float()).tolist()
    return {name: middle, f"{name[:3]}. spread": high - low}


def _check(maps: Tensor, images: Tensor, name: str) -> None:
    wanted = (images.shape[0], *images.shape[2:])
    if not isinstance(maps, Tensor):
        raise InputError(f"{name} is a {type(maps).__name__}; it must be a tensor B H W")
    if tuple(maps.shape) != wanted:
        raise InputError(f"{name} has the shape {tuple(maps.shape)}; for these images it must be {tuple(wanted)}")
    if maps.isnan().any():
        raise InputError(f"{name} has values that are no numbers (NaN); nothing can be put in order by them")
