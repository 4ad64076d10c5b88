"""What a search tries beside the default: weights, how much of them is trained, image size, rate and augmentation.

The order is the search's prior knowledge. Linear heads come first: one pass over the images each, and on the sets of
docs/first-try.md hard to beat. Then each way to train once, with the settings of its recipe; then variations of all.
"""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitrail.packaged import NAME as PACKAGED
from vitrail.packaged import PHOTOS
from vitrail.training.first_model import FOR_SMALL, SMALL, Sampled

_PROBED = (96, 224, 128, 288)  # pixels for linear heads, beside the default's
_LARGER = 2.5  # times: images that are enlarged more have nothing to show
RATES = {"x 1": 1.0, "x 0.3": 0.3, "x 3": 3.0}
AUGMENTED: Mapping[str, Mapping[str, Any]] = {
    "as the recipe": {},
    "little": {
        "augment": {"crop": "shift", "flip": False, "colour": 0.0}, "mix": {"mixup": 0.0, "cutmix": 0.0},
    },
    "much": {"augment": {"randaugment": 2, "magnitude": 9.0, "erase": 0.1}},
}  # fmt: skip
_OF_AUGMENTATION = {"augment", "mix"}


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Keywords of `make_plan` and changes of a recipe, what they are in words, and their traits for comparison."""

    about: str
    traits: Mapping[str, str]
    start: str | None = None
    model: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    rate: float = 1.0  # times the rate of its recipe

    @property
    def key(self) -> str:
        """Tells it from all others."""
        return ", ".join(f"{name}={value}" for name, value in self.traits.items())

    @property
    def fitted(self) -> bool:
        """Whether it is a head that is fitted at once, not trained for epochs."""
        return self.changes.get("probe") is not None


@dataclass(frozen=True, kw_only=True)
class Given:
    """What the user has decided: the weights or model of all trials, and the keys of a recipe that none may change."""

    start: str | None = None
    model: str | None = None
    recipe: bool = False
    keys: frozenset[str] = frozenset()

    @property
    def open(self) -> bool:
        """Whether weights and model are left open."""
        return self.start is None and self.model is None and not self.recipe and "options" not in self.keys


def linear_heads(seen: Sampled, given: Given, *, default_size: int) -> list[Candidate]:
    """Linear heads on the features of frozen weights, at several image sizes."""
    if {"probe", "lora", "freeze_until", "fit_head"} & given.keys or given.model is not None or given.recipe:
        return []
    starts = [PACKAGED, PHOTOS] if given.start is None else [given.start]
    side, found = max(seen.height, seen.width), []
    for start in starts:
        sizes: Sequence[int | None] = [None]
        if start != PACKAGED and "image_size" not in given.keys:
            sizes = [
                None,
                *(size for size in _PROBED if size != default_size and size <= max(_PROBED[0], _LARGER * side)),
            ]
        for size in sizes:
            found.append(_head(start, size))
    return found


def _head(start: str, size: int | None) -> Candidate:
    pixels = "" if size is None else f" at {size} px"
    return Candidate(
        about=f"a linear head on {start}{pixels}",
        traits={"method": "linear head", "weights": start, "size": _pixels(size)},
        start=start,
        changes={"probe": "linear", **_sized(size)},
    )


def trained(seen: Sampled, given: Given, *, default_size: int, seed: int) -> Iterator[Candidate]:
    """Ways to train for epochs: each once as its recipe says, then variations in an order drawn by the seed."""
    ways = _open_ways(seen) if given.open else _named_ways(given)
    sizes = [None, 0.75, 1.5, 0.5] if "image_size" not in given.keys else [None]
    rates = RATES if "optimiser" not in given.keys else {"x 1": 1.0}
    augmented = AUGMENTED if not _OF_AUGMENTATION & given.keys else {"as the recipe": {}}
    yield from ways
    varied = [
        each for each in itertools.product(ways, rates, augmented, sizes) if each[1:] != ("x 1", "as the recipe", None)
    ]
    random.Random(seed).shuffle(varied)  # noqa: S311  (no secret)
    for way, rate, augment, scale in varied:
        yield _varied(way, rate, augment, scale, default_size)


def _varied(way: Candidate, rate: str, augment: str, scale: float | None, default_size: int) -> Candidate:
    own = way.changes.get("image_size")
    size = None if scale is None else max(32, round(scale * (own or default_size) / 32) * 32)
    traits = {**way.traits, "rate": rate, "augmentation": augment}
    traits |= {} if size is None else {"size": _pixels(size)}
    words = [
        *([] if size is None else [f"at {size} px"]), *([] if rate == "x 1" else [f"rate {rate}"]),
        *([] if augment == "as the recipe" else [f"{augment} augmentation"]),
    ]  # fmt: skip
    return Candidate(
        about=", ".join([way.about, *words]), traits=traits, start=way.start, model=way.model, rate=RATES[rate],
        changes={**way.changes, **AUGMENTED[augment], **_sized(size)},
    )  # fmt: skip


def _way(about: str, method: str, *, start: str | None = None, model: str | None = None, **changes: Any) -> Candidate:
    traits = {"method": method, "weights": start or model or "none", "size": _pixels(changes.get("image_size"))}
    return Candidate(
        about=about, traits={**traits, "rate": "x 1", "augmentation": "as the recipe"}, start=start, model=model,
        changes=changes,
    )  # fmt: skip


def _open_ways(seen: Sampled) -> list[Candidate]:
    """Where neither model nor weights were named: the cheap ones first; small images are shown in few pixels."""
    side = max(seen.height, seen.width)
    small = side <= SMALL
    sized = _sized(_PROBED[0] if small else None)
    pixels = f" at {_PROBED[0]} px" if small else ""
    freeze: dict[str, Any] = {"fit_head": True, "freeze_until": "stages.3"}
    size = max(side // 4, 2) * 4
    scratch = (
        _way(f"a new {FOR_SMALL} at {size} px", "from scratch", model=FOR_SMALL, image_size=size)
        if small
        else _way("a new vit_tiny_patch16 at 128 px", "from scratch", model="vit_tiny_patch16", image_size=128)
    )
    return [
        _way(f"fine-tunes the last stages of {PHOTOS}{pixels}", "last stages", start=PHOTOS, **freeze, **sized),
        _way("fine-tunes the packaged vit32_conv", "fine-tuning", start=PACKAGED),
        _way(f"fine-tunes {PHOTOS}{pixels}", "fine-tuning", start=PHOTOS, fit_head=True, **sized),
        _way("low-rank updates (LoRA) of the packaged vit32_conv", "LoRA", start=PACKAGED, lora=8),
        scratch,
    ]


def _named_ways(given: Given) -> list[Candidate]:
    """Where the user named a model, weights or a recipe: that alone, and with weights also less of it."""
    named = given.start or given.model or ("the recipe" if given.recipe else "the default model")
    method = "fine-tuning" if given.start is not None else "training"
    if {"probe", "lora", "freeze_until", "fit_head"} & given.keys or given.start is None or given.recipe:
        return [_way(f"trains {named}", method)]
    return [
        _way(f"fine-tunes {named}", method),
        _way(f"low-rank updates (LoRA) of {named}", "LoRA", lora=8),
        _way(f"fine-tunes {named} from a fitted head", "fine-tuning, fitted head", fit_head=True),
    ]


def _sized(size: int | None) -> dict[str, Any]:
    return {} if size is None else {"image_size": size}


def _pixels(size: int | None) -> str:
    return "default" if size is None else f"{size} px"
