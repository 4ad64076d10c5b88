"""The scores of the saliency maps of one picture, as thorough as there is time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from vitrail.errors import ConfigError, nearest
from vitrail.explain.methods.method import Method
from vitrail.explain.methods.saliency import saliency
from vitrail.explain.methods.target import Target
from vitrail.explain.progress import Counter
from vitrail.explain.scoring.faithfulness import areas, baselines, pointing
from vitrail.explain.scoring.randomisation import rank_correlations
from vitrail.models.backbone import Backbone
from vitrail.profiling.count import cost

MIN_STEPS, MAX_STEPS = 4, 32  # of the curves of insertion and deletion
QUICK_MACS = 2.5e11  # multiply-adds of the quick scores of one picture: seconds on one core
ScoreLevel = Literal["none", "quick", "full"]


class Score(NamedTuple):
    """How faithful a map is: areas under the curves of insertion (higher is better) and deletion (lower is better).

    A map that hardly changes when the weights are shuffled shows the picture and not the model.
    """

    insertion: float
    deletion: float
    baseline: bool = False  # "random" and "centre", which do not depend on the model
    shuffled: float | None = None  # rank correlation with the map of the same model with shuffled weights
    pointing: bool | None = None  # whether the maximum is on the object, if there is a mask


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """How thoroughly maps are scored: the steps of the curves, 0 for no scores, and whether weights are shuffled."""

    steps: int
    shuffle: bool

    @classmethod
    def of(cls, level: ScoreLevel, model: Backbone, num_maps: int, *, steps: int | None = None) -> "Scoring":
        """The scoring of a level: "full" has 32 steps, "quick" as many as fit its budget, from 4 to 32.

        `steps` overrides their number.
        """
        if level not in get_args(ScoreLevel):
            raise ConfigError(f"unknown scores {level!r}; {nearest(level, get_args(ScoreLevel))}")
        if steps is not None and steps < 1:
            raise ConfigError(f"steps is {steps}; it must be 1 or more")
        if level == "none":
            return cls(steps=0, shuffle=False)
        count = MAX_STEPS if steps is None else steps
        if level == "quick" and steps is None:  # two curves a map, which share their ends
            passes = QUICK_MACS / max(cost(model).macs, 1)
            count = min(max(1 + int((passes - 2) / (2 * num_maps)), MIN_STEPS), MAX_STEPS)
        return cls(steps=count, shuffle=level == "full")

    @property
    def note(self) -> str:
        """What was left out, in a sentence; empty if nothing was."""
        if not self.steps:
            return "The maps have no scores (--scores none)."
        if self.shuffle:
            return "" if self.steps >= MAX_STEPS else f"Curves of insertion and deletion have {self.steps} steps."
        fewer = f"curves of insertion and deletion have {self.steps} of {MAX_STEPS} steps, and "
        return (
            f"Quick scores: {fewer if self.steps < MAX_STEPS else ''}maps are not compared with those of shuffled "
            "weights. For all of it: --scores full."
        )


def score_maps(
    model: Backbone,
    images: Tensor,
    maps: Mapping[str, Tensor],
    target: Target,
    scoring: Scoring,
    *,
    copied: Backbone | None = None,
    mask: Tensor | None = None,
    counter: Counter | None = None,
) -> dict[str, Score]:
    """The scores of each method's map 1 H W of one image, and of maps that do not depend on the model.

    `copied` is the model with shuffled weights, `mask` H W is true on the object.
    """
    if not scoring.steps:
        return {}
    counter = counter or Counter()
    independent = baselines(images)
    every = torch.stack([values.to(images.device) for values in (*maps.values(), *independent.values())])  # M 1 H W
    counter.begin("insertion and deletion")
    deletion, insertion = areas(model, images, every, target, steps=scoring.steps, on_step=counter.advance)
    correlation: dict[str, float] = {}
    if copied is not None:
        for name, values in maps.items():
            if name not in Method.kinds:  # it is read from the model, and no method computes it
                continue
            counter.begin(f"{name} with shuffled weights")
            correlation[name] = rank_correlations(values, saliency(copied, images, name, target)).item()
            counter.advance()
        correlation |= dict.fromkeys(independent, 1.0)  # they do not change with the model
    hits = None if mask is None else pointing(every[:, 0], mask.to(every.device).expand_as(every[:, 0])).tolist()
    return {
        name: Score(
            insertion[at].item(),
            deletion[at].item(),
            baseline=name in independent,
            shuffled=correlation.get(name),
            pointing=None if hits is None else hits[at],
        )
        for at, name in enumerate((*maps, *independent))
    }
