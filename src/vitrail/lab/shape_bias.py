"""Shape against texture: which cue a ViT and a CNN follow when both told the class in training and then disagree."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.config import Count
from vitrail.lab.cue_conflict import CLASSES, shape_and_texture
from vitrail.lab.estimates import by_seed, estimate
from vitrail.lab.experiment import NEW_APPROACH, Check, Experiment, Results, Settings, Verdict, condition, judge, limit
from vitrail.lab.fitting import Fit, fit
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
    """Made pictures, new in every batch; a ViT and a CNN of about equal MACs."""

    side: Count = 28
    dim: Count = 48
    depth: Count = 4
    patch: Count = 7
    widths: tuple[Count, ...] = (14, 28, 56)
    strides: tuple[Count, ...] = (2, 1, 2, 2)
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
        dim=192,
        depth=8,
        patch=6,
        widths=(64, 128, 192),
        strides=(2, 1, 2, 2),
        test=10_000,
        vit=Fit(steps=2500, batch=256, rate=5e-4, precision="bf16"),
        cnn=Fit(steps=2500, batch=256, rate=2e-3, precision="bf16"),
    )
    seconds = 18.0
    seeds = 3

    def measure(self, settings: ShapeBiasSettings, *, seed: int, device: torch.device) -> Results:
        """Accuracy with both cues and with each alone, and which of them decides where they disagree."""
        vit = small_vit(dim=settings.dim, depth=settings.depth, patch=settings.patch, image_size=settings.side,
                        channels=1, num_classes=CLASSES)  # fmt: skip
        cnn = small_cnn(settings.widths, settings.strides, channels=1, num_classes=CLASSES)
        classes = torch.arange(settings.test, device=device) % CLASSES
        other = (classes + torch.randint(1, CLASSES, (settings.test,), device=device)) % CLASSES
        pictures = {
            "clean": shape_and_texture(classes, classes, settings.side),
            "shape_only": shape_and_texture(classes, None, settings.side),
            "texture_only": shape_and_texture(None, classes, settings.side),
        }
        conflict = shape_and_texture(classes, other, settings.side)
        found: dict[str, Any] = {}
        for name, body, how in (("vit", vit, settings.vit), ("cnn", cnn, settings.cnn)):
            model = Classifier(body, 0.5, 0.3).to(device)
            fit(model, _agreeing(settings.side, how.batch, device), how)
            found[name] = {key: accuracy(model, Labelled(images, classes)) for key, images in pictures.items()}
            found[name] |= _followed(model, conflict, classes, other)
        return found

    def figures(self, results: Sequence[Results]) -> Sequence[Section]:
        """A table of both models."""
        columns = {"pictures": "", **dict.fromkeys(_MODELS.values(), "share")}
        rows = [
            {"pictures": title} | {label: fmean(by_seed(results, name, key)) for name, label in _MODELS.items()}
            for key, title in _KEYS.items()
        ]
        return (Table("Accuracy, and which cue is followed", columns, rows),)  # type: ignore[arg-type]

    def verdict(self, results: Sequence[Results]) -> Verdict:
        """The share of shape among decisions for either cue."""
        vit, cnn = (by_seed(results, name, "bias") for name in _MODELS)
        least = [min(result[name]["clean"] for name in _MODELS) for result in results]
        found = judge(
            [
                Check(text="the ViT follows the shape more often than the CNN, by 2 points",
                      found=estimate([a - b for a, b in zip(vit, cnn, strict=True)]), least=0.02, unit="share"),
                limit("the CNN follows the texture more often than the shape", estimate(cnn), most=0.5, unit="share"),
                limit("the ViT follows the texture more often, too, as in the source's numbers", estimate(vit),
                      most=0.5, unit="share"),
            ],
            conditions=[
                condition("both models learn the task: accuracy above 90 %, as a mean", estimate([fmean(least)]),
                          least=0.9, unit="share")
            ],
        )  # fmt: skip
        if max(vit + cnn) < _FLOOR or min(vit + cnn) > 1 - _FLOOR:
            cue = "texture" if max(vit + cnn) < _FLOOR else "shape"
            text = (
                f"Both models follow the {cue} in more than {1 - _FLOOR:.0%} of their decisions, in every seed: it "
                "is too easy here to tell which model follows the shape more often"
            )
            return replace(found, outcome="undecided", text=text)
        return found

    def true_case(self) -> Sequence[Results]:
        """A ViT that follows the shape in 45 % and a CNN that does in 23 %, the numbers of the source."""
        return [_made(vit=0.45, cnn=0.23)]

    def false_case(self) -> Sequence[Results]:
        """The reverse."""
        return [_made(vit=0.23, cnn=0.45)]


def _agreeing(side: int, batch: int, device: torch.device) -> Draw:
    """Batches in which shape and texture say the same class."""

    def draw() -> Labelled:
        classes = torch.randint(CLASSES, (batch,), device=device)
        return Labelled(shape_and_texture(classes, classes, side), classes)

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
    return {
        name: {"clean": 1.0, "shape_only": 0.8, "texture_only": 0.8, "shape": bias, "texture": 1 - bias, "bias": bias}
        for name, bias in (("vit", vit), ("cnn", cnn))
    }
