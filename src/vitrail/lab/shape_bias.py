"""Shape against texture: which cue a ViT and a CNN follow when both told the class in training and then disagree."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.config import Count, Rate
from vitrail.lab.cue_conflict import CLASSES, shape_and_texture
from vitrail.lab.estimates import by_seed, estimate
from vitrail.lab.experiment import NEW_APPROACH, Check, Experiment, Results, Settings, Verdict, condition, judge, limit
from vitrail.lab.fitting import Fit, fit
from vitrail.lab.plots import chart, line
from vitrail.lab.small_models import Classifier, small_cnn, small_vit
from vitrail.lab.small_training import Draw, Labelled, accuracy, outputs
from vitrail.report import Section, Table

_FLOOR = 0.05  # a share that is smaller in both models says that one cue is too easy, not how the models differ
_MODELS = {"vit": "ViT", "cnn": "CNN"}
_KEYS = {
    "clean": "both cues agree",
    "shape_only": "shape alone",
    "texture_only": "texture alone",
    "shape": "cues disagree: follows the shape",
    "texture": "cues disagree: follows the texture",
    "bias": "shape, of decisions for either (guesses taken off)",
}


@dataclass(frozen=True, kw_only=True)
class ShapeBiasSettings(Settings):
    """Made pictures, new in every batch, by the contrast of their texture; a ViT and a CNN of about equal MACs."""

    side: Count = 28
    dim: Count = 48
    depth: Count = 4
    patch: Count = 7
    widths: tuple[Count, ...] = (14, 28, 56)
    strides: tuple[Count, ...] = (2, 1, 2, 2)
    contrasts: tuple[Rate, ...] = (1.0,)
    test: Count = 1000
    vit: Fit = Fit(steps=300, rate=2e-3)
    cnn: Fit = Fit(steps=300, rate=3e-3)


class ShapeBias(Experiment):
    """Four shapes and four textures; in training the shape and the texture of a picture always say the same class."""

    name = "shape-bias"
    title = "Shape against texture"
    claim = "CNNs are biased to texture; ViTs are more aware of shape."
    source = f"{NEW_APPROACH}; Shape vs Texture Bias; CNN Limitations (Texture bias)"
    prediction = (
        "On pictures whose shape is of one class and whose texture is of another, the ViT follows the shape more often "
        "than a CNN of equal cost that was trained on the same pictures, and the CNN follows the texture mostly."
    )
    falsifier = "The ViT follows the shape no more often than the CNN."
    quick = ShapeBiasSettings()
    full = ShapeBiasSettings(
        side=48,
        dim=128,
        depth=6,
        patch=6,
        widths=(58, 116, 184),
        strides=(2, 1, 2, 2),
        contrasts=(1.0, 0.3, 0.2, 0.15),
        test=10_000,
        vit=Fit(steps=2500, batch=256, rate=1e-3, precision="bf16"),
        cnn=Fit(steps=2500, batch=256, rate=2e-3, precision="bf16"),
    )
    seconds = 18.0
    seeds = 3

    def measure(self, settings: ShapeBiasSettings, *, seed: int, device: torch.device) -> Results:
        """By contrast: accuracy with both cues and with each alone, and which of them decides where they disagree."""
        found: dict[str, Any] = {"contrasts": list(settings.contrasts)}
        found |= {name: {key: [] for key in _KEYS} for name in _MODELS}
        for contrast in settings.contrasts:
            for name, values in _at(contrast, settings, device).items():
                for key, value in values.items():
                    found[name][key].append(value)
        return found

    def figures(self, results: Sequence[Results]) -> Sequence[Section]:
        """A table of both models for each contrast, and the share of shape by contrast."""
        columns = {"pictures": "", **dict.fromkeys(_MODELS.values(), "share")}
        sections: list[Section] = []
        for index, contrast in enumerate(results[0]["contrasts"]):
            rows = [
                {"pictures": title}
                | {label: fmean(by_seed(results, name, key, index)) for name, label in _MODELS.items()}
                for key, title in _KEYS.items()
            ]
            title = f"Accuracy, and which cue is followed, at a contrast of {contrast:g}"
            sections.append(Table(title, columns, rows))  # type: ignore[arg-type]
        contrasts = [float(one) for one in results[0]["contrasts"]]
        if len(contrasts) > 1:
            lines = [line(label, contrasts, results, name, "bias") for name, label in _MODELS.items()]
            text = "Of decisions for either cue, where they disagree; guesses taken off."
            sections.insert(0, chart("Share of the shape", lines, text, x="contrast of the texture", y="share"))
        return sections

    def verdict(self, results: Sequence[Results]) -> Verdict:
        """The share of shape among decisions for either cue, where not one cue alone decides in both models."""
        every = range(len(results[0]["contrasts"]))
        bias = {name: [by_seed(results, name, "bias", index) for index in every] for name in _MODELS}
        told = [index for index in every if _tells(bias["vit"][index] + bias["cnn"][index])] or list(every)
        vit, cnn = ([fmean(result[name]["bias"][index] for index in told) for result in results] for name in _MODELS)
        leads = [a - b for a, b in zip(vit, cnn, strict=True)]
        least = [min(result[name]["clean"][index] for name in _MODELS for index in told) for result in results]
        found = judge(
            [
                Check(text="the ViT follows the shape more often than the CNN, by 2 points", found=estimate(leads),
                      least=0.02, unit="share"),
                limit("the CNN follows the texture more often than the shape", estimate(cnn), most=0.5, unit="share"),
                limit("the ViT follows the texture more often, too, as in the source's numbers", estimate(vit),
                      most=0.5, unit="share"),
            ],
            conditions=[
                condition("both models learn the task: accuracy above 90 %, as a mean", estimate([fmean(least)]),
                          least=0.9, unit="share")
            ],
        )  # fmt: skip
        if any(_tells(bias["vit"][index] + bias["cnn"][index]) for index in every):
            return found
        text = (
            f"At each contrast that was tried, both models follow the same cue in more than {1 - _FLOOR:.0%} of their "
            "decisions, in every seed: it is too easy here to tell which model follows the shape more often"
        )
        return replace(found, outcome="undecided", text=text)

    def true_case(self) -> Sequence[Results]:
        """A ViT that follows the shape in 45 % and a CNN that does in 23 %, the numbers of the source."""
        return [_made(vit=0.45, cnn=0.23)]

    def false_case(self) -> Sequence[Results]:
        """The reverse."""
        return [_made(vit=0.23, cnn=0.45)]


def _tells(shares: Sequence[float]) -> bool:
    """Whether shares of the shape say how models differ: not all of them follow one cue alone."""
    return max(shares) >= _FLOOR and min(shares) <= 1 - _FLOOR


def _at(contrast: float, settings: ShapeBiasSettings, device: torch.device) -> dict[str, dict[str, float]]:
    """Both models trained and tested on pictures whose texture has this contrast."""
    side = settings.side
    vit = small_vit(dim=settings.dim, depth=settings.depth, patch=settings.patch, image_size=side, channels=1,
                    num_classes=CLASSES)  # fmt: skip
    cnn = small_cnn(settings.widths, settings.strides, channels=1, num_classes=CLASSES)
    classes = torch.arange(settings.test, device=device) % CLASSES
    other = (classes + torch.randint(1, CLASSES, (settings.test,), device=device)) % CLASSES
    pictures = {
        "clean": shape_and_texture(classes, classes, side, contrast),
        "shape_only": shape_and_texture(classes, None, side, contrast),
        "texture_only": shape_and_texture(None, classes, side, contrast),
    }
    conflict = shape_and_texture(classes, other, side, contrast)
    found: dict[str, dict[str, float]] = {}
    for name, body, how in (("vit", vit, settings.vit), ("cnn", cnn, settings.cnn)):
        model = Classifier(body, 0.5, 0.3).to(device)
        fit(model, _agreeing(side, how.batch, contrast, device), how)
        found[name] = {key: accuracy(model, Labelled(images, classes)) for key, images in pictures.items()}
        found[name] |= _followed(model, conflict, classes, other)
    return found


def _agreeing(side: int, batch: int, contrast: float, device: torch.device) -> Draw:
    """Batches in which shape and texture say the same class."""

    def draw() -> Labelled:
        classes = torch.randint(CLASSES, (batch,), device=device)
        return Labelled(shape_and_texture(classes, classes, side, contrast), classes)

    return draw


def _followed(model: nn.Module, images: Tensor, shapes: Tensor, textures: Tensor) -> dict[str, float]:
    """The shares of answers for the shape and for the texture, and that of shape among decisions for either.

    Answers for a class that neither tells are guesses; as many are taken from both sides, for one class each.
    """
    answers = outputs(model, images).argmax(dim=1)
    shape, texture = (float((answers == classes).float().mean()) for classes in (shapes, textures))
    guesses = (1 - shape - texture) / (CLASSES - 2)
    decided = [max(share - guesses, 0.0) for share in (shape, texture)]
    return {"shape": shape, "texture": texture, "bias": decided[0] / max(sum(decided), 1e-9)}


def _made(*, vit: float, cnn: float) -> Results:
    def one(bias: float) -> dict[str, list[float]]:
        return {
            "clean": [1.0], "shape_only": [0.8], "texture_only": [0.8], "shape": [bias], "texture": [1 - bias],
            "bias": [bias],
        }  # fmt: skip

    return {"contrasts": [1.0], "vit": one(vit), "cnn": one(cnn)}
