"""How faithful saliency maps are: scores as pixels are removed and added, beside maps that do not depend on the model.

report = faithfulness(model, images, {"relevance": saliency(model, images)})
report = faithfulness(model, images, {"relevance": first, "rollout": second, "mine": third}, masks=masks)
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitrail.errors import ConfigError, InputError
from vitrail.explain.methods.method import Method
from vitrail.explain.methods.saliency import method_of, saliency
from vitrail.explain.methods.target import Ask, Target, targets
from vitrail.explain.scoring.randomisation import randomisation, rank_correlations, shuffled
from vitrail.explain.scoring.removal import MAX_BATCH, Baseline, Direction, Ends, area, baseline, curve, scores
from vitrail.explain.unwrap import backbone_of, eval_mode
from vitrail.models.backbone import Backbone
from vitrail.report import Report, Section, Table, Text, Unit, Value

_NOTES = (
    "Pixels are removed or added in {steps} steps, the most important first, and the score of the explained output "
    "(for a class, its probability) is drawn over the share of pixels. Deletion goes from the image to {deletion}, "
    "insertion from {insertion} to the image. For a faithful map the area under the curve is small for deletion "
    "and large for insertion. Numbers are medians over {count} images, and spread is the interquartile range; `random` "
    "is noise, `centre` is the closeness to the centre.{shuffled}"
)
_SHUFFLED = (
    " `shuffled` is Spearman's rank correlation with the map of the same model with shuffled parameters: a map that "
    "stays the same, near 1, does not show the model."
)
_NO_NAMES = " Maps named after their method, as in {'relevance': maps}, are also compared with a shuffled model."
_RANDOMISATION = (
    "The parameters of the model are shuffled part after part, from the head down, and the maps are computed again. "
    "Spearman's rank correlation with the first maps falls towards 0 if a method shows what the model has learned."
)
_BASELINES = {"mean": "its mean colour", "blur": "the blurred image"}


class Areas(NamedTuple):
    """The areas under the curves of some maps."""

    deletion: Tensor  # lower is better
    insertion: Tensor  # higher is better


def areas(
    model: nn.Module,
    images: Tensor,
    maps: Tensor,
    target: Ask = None,
    *,
    steps: int = 32,
    deletion: Baseline = "blur",
    insertion: Baseline = "blur",
    on_step: Callable[[], None] = lambda: None,
) -> Areas:
    """The areas under the curves of deletion and insertion: images B C H W and maps B H W -> B each.

    Several maps of the same images, M B H W -> M B, share the ends of their curves. Removed pixels are those of the
    blurred image. With "mean" they have the image's mean colour; but a constant colour in scattered places makes an
    image unlike any other, so that even noise then deletes well. `on_step` is called after each pass.
    """
    backbone, stacked = backbone_of(model), maps if maps.ndim == 4 else maps[None]
    for one in stacked:
        _check(one, images, "the map")
    if steps < 1:
        raise ConfigError(f"steps is {steps}; it must be 1 or more")
    with eval_mode(model), torch.no_grad():
        known = targets(model, images, target)
        removed = {kind: baseline(images, kind) for kind in dict.fromkeys((deletion, insertion))}
        whole = scores(backbone, images, known)
        ends = {kind: Ends(whole, scores(backbone, one, known)) for kind, one in removed.items()}
        results: dict[Direction, list[Tensor]] = {"deletion": [], "insertion": []}
        for some in stacked.split(max(MAX_BATCH // len(images), 1)):  # m B H W
            for direction, kind in zip(results, (deletion, insertion), strict=True):
                curves = curve(
                    backbone,
                    images.repeat(len(some), 1, 1, 1),
                    removed[kind].repeat(len(some), 1, 1, 1),
                    some.flatten(0, 1),
                    known.repeat(len(some)),
                    direction=direction,
                    steps=steps,
                    ends=Ends(*(end.repeat(len(some)) for end in ends[kind])),
                    on_step=on_step,
                )
                results[direction].append(area(curves))
    return Areas(*(torch.cat(parts).view(maps.shape[:-2]) for parts in results.values()))


def baselines(images: Tensor, *, seed: int = 0) -> dict[str, Tensor]:
    """Maps that do not depend on a model: noise, and closeness to the centre; B H W each."""
    batch, _, height, width = images.shape
    y, x = (torch.linspace(-1, 1, length) if length > 1 else torch.zeros(1) for length in (height, width))
    noise = torch.rand(batch, height, width, generator=torch.Generator().manual_seed(seed))
    closeness = -(y[:, None] ** 2 + x**2).expand(batch, -1, -1)
    return {"random": noise.to(images.device), "centre": closeness.to(images.device)}


def pointing(maps: Tensor, masks: Tensor) -> Tensor:
    """Whether the maximum of each map is on the object: B H W and B H W bool -> B bool (arXiv:1608.00507)."""
    highest = maps.flatten(1).argmax(dim=1, keepdim=True)
    return masks.flatten(1).gather(1, highest.to(masks.device))[:, 0]


def faithfulness(
    model: nn.Module,
    images: Tensor,
    maps: Tensor | Mapping[str, Tensor],
    *,
    target: Ask = None,
    masks: Tensor | None = None,
    randomise: bool = False,
    steps: int = 32,
    deletion: Baseline = "blur",
    insertion: Baseline = "blur",
    seed: int = 0,
) -> Report:
    """How faithful maps B H W are, by name if there are several, beside the baselines "random" and "centre".

    Maps named after their method are compared with those of the model with shuffled parameters; with `randomise` also
    part after part, from the head down. `target` is the output that was explained, as in `saliency`; `masks` B H W are
    true on the object and add the pointing game.
    """
    backbone, named = backbone_of(model), _named(maps)
    for name, one in named.items():
        _check(one, images, name)
    if masks is not None:
        _check(masks, images, "masks")
    with eval_mode(model):
        known = targets(model, images, target)
    copied = shuffled(backbone, seed=seed) if Method.kinds.keys() & named else None
    every = named | baselines(images, seed=seed)
    stacked = torch.stack([one.to(images.device).float() for one in every.values()])  # M B H W
    results = areas(model, images, stacked, known, steps=steps, deletion=deletion, insertion=insertion)
    rows: list[dict[str, Value]] = []
    for at, (name, one) in enumerate(every.items()):
        row: dict[str, Value] = {"map": name}
        row |= _median("deletion", results.deletion[at]) | _median("insertion", results.insertion[at])
        if copied is not None and name in Method.kinds:
            row["shuffled"] = rank_correlations(one, saliency(copied, images, name, known)).median().item()
        if masks is not None:
            row["pointing"] = pointing(one, masks.bool()).float().mean().item()
        rows.append(row)
    columns: dict[str, Unit] = {name: "share" if name == "pointing" else "" for row in rows for name in row}
    ends, shuffled_text = (_BASELINES[deletion], _BASELINES[insertion]), _NO_NAMES if copied is None else _SHUFFLED
    notes = _NOTES.format(steps=steps, deletion=ends[0], insertion=ends[1], count=len(images), shuffled=shuffled_text)
    sections: list[Section] = [Table("Deletion and insertion", columns, rows), Text("Notes", notes)]
    if randomise:
        sections += _randomisation(backbone, images, named, known, seed=seed)
    return Report("Faithfulness", tuple(sections))


def _named(maps: Tensor | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Maps by name; a single one is called "map"."""
    if isinstance(maps, Tensor):
        return {"map": maps}
    if not isinstance(maps, Mapping):
        raise InputError(f"maps must be a tensor B H W, or several by name, not a {type(maps).__name__}")
    for name in maps:
        if name in ("random", "centre"):
            raise ConfigError(f"{name!r} is the name of a baseline; choose another name for the map")
    return dict(maps)


def _randomisation(
    model: Backbone, images: Tensor, named: Mapping[str, Tensor], target: Target, *, seed: int
) -> list[Section]:
    """Rank correlations as the model is shuffled: a column for each method, a row for each part."""
    rows: dict[str, dict[str, Value]] = {}
    if "map" in named:
        raise ConfigError("randomise computes maps again: name this one after its method, as in {'relevance': maps}")
    for name, maps in named.items():
        explain = partial(saliency, images=images, method=method_of(name), target=target)
        for part, correlations in randomisation(model, maps, explain, seed=seed):
            rows.setdefault(part, {"shuffled down to": part})[name] = correlations.median().item()
    columns: dict[str, Unit] = dict.fromkeys(["shuffled down to", *named], "")
    return [Table("Randomisation", columns, list(rows.values())), Text("Notes on randomisation", _RANDOMISATION)]


def _median(name: str, values: Tensor) -> dict[str, Value]:
    low, middle, high = torch.quantile(values.float(), values.new_tensor([0.25, 0.5, 0.75]).float()).tolist()
    return {name: middle, f"{name[:3]}. spread": high - low}


def _check(maps: Tensor, images: Tensor, name: str) -> None:
    expected = (images.shape[0], *images.shape[2:])
    if not isinstance(maps, Tensor):
        raise InputError(f"{name} must be a tensor B H W, not a {type(maps).__name__}")
    if tuple(maps.shape) != expected:
        raise InputError(f"{name} has the shape {tuple(maps.shape)}; for these images it must be {tuple(expected)}")
    if maps.isnan().any():
        raise InputError(f"{name} contains NaN, so its pixels cannot be ranked")
