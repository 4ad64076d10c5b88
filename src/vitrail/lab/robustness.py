"""Robustness of a ViT and a CNN that were trained on the same images: corruptions, attacks, occlusion, sketches."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from vitrail.config import Count, CountFromZero
from vitrail.lab.attacks import fgsm, pgd
from vitrail.lab.corruptions import CORRUPTIONS, corrupt
from vitrail.lab.distortions import occlude, shift, sketch
from vitrail.lab.estimates import by_seed, estimate
from vitrail.lab.experiment import NEW_APPROACH, Check, Experiment, Results, Settings, Verdict, judge
from vitrail.lab.fitting import Fit, first, fit, open_pictures, shuffled
from vitrail.lab.plots import chart, line
from vitrail.lab.small_models import Classifier, macs, parameters, small_cnn, small_vit
from vitrail.lab.small_training import Labelled, accuracy
from vitrail.report import Group, Section, Table

_STRENGTHS = (1, 2, 3, 4, 5)
_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)  # of the image that is hidden
_RADII = (1, 2, 4, 8)  # in 1/255 of the range of a pixel
_SHIFTS = (1, 2, 3, 4)  # pixels
_MODELS = {"vit": "ViT", "cnn": "CNN"}
_KINDS = {
    "corruption": "corruptions (15 kinds, 5 strengths)",
    "adversarial": "attacks (PGD)",
    "occlusion": "occlusion",
    "sketch": "sketches",
}
_KEPT = "share kept above chance, ViT - CNN"
_CASES = ("clean", "corruption", "fgsm", "adversarial", "occlusion", "shift", "sketch")


@dataclass(frozen=True, kw_only=True)
class RobustnessSettings(Settings):
    """A ViT, and a CNN of about equal MACs; `train` and `test` images of a dataset (0 for all), `tried` on."""

    data: str = "demo"
    train: CountFromZero = 6000
    test: CountFromZero = 2000
    tried: Count = 200
    dim: Count = 48
    depth: Count = 4
    patch: Count = 7
    widths: tuple[Count, ...] = (14, 28, 56)
    strides: tuple[Count, ...] = (2, 1, 2, 2)
    vit: Fit = Fit(steps=400, rate=2e-3)
    cnn: Fit = Fit(steps=400, rate=3e-3)


class Robustness(Experiment):
    """Small models without pre-training, so that the architecture is what differs."""

    name = "robustness"
    title = "Robustness of a ViT and a CNN"
    claim = "ViTs are significantly more robust than CNNs: to corruptions, attacks, sketches and occlusions."
    source = (
        f"{NEW_APPROACH}; Robustness and Generalization (Out-of-Distribution Performance); Key Observations; "
        "Generalisation to Different Domains"
    )
    prediction = (
        "Of the accuracy above chance on clean images, a ViT keeps a larger share than a CNN of equal cost that was "
        "trained on the same images: under corruptions, PGD, occlusion, and on sketches; and its accuracy is higher."
    )
    falsifier = "The ViT keeps no more than the CNN under one of these."
    quick = RobustnessSettings()
    full = RobustnessSettings(
        data="cifar10",
        train=0,
        test=0,
        tried=2000,
        dim=192,
        depth=9,
        patch=4,
        widths=(64, 128, 128, 256),
        strides=(1, 1, 2, 1, 2),
        vit=Fit(steps=5000, batch=256, rate=1e-3, precision="bf16"),
        cnn=Fit(steps=5000, batch=256, rate=3e-3, precision="bf16"),
    )
    seconds = 26.0
    seeds = 3

    def measure(self, settings: RobustnessSettings, *, seed: int, device: torch.device) -> Results:
        """Accuracy of both models on the same clean, corrupted, attacked, hidden, moved and drawn images."""
        train, test = open_pictures(settings.data, settings.train, settings.test, device)
        channels, side = train.images.shape[1], train.images.shape[2]
        classes = int(train.classes.max()) + 1
        scale = float(train.images.mean()), float(train.images.std())
        vit = small_vit(
            dim=settings.dim, depth=settings.depth, patch=settings.patch, image_size=side, channels=channels,
            num_classes=classes,
        )  # fmt: skip
        cnn = small_cnn(settings.widths, settings.strides, channels=channels, num_classes=classes)
        models = {"vit": (vit, settings.vit), "cnn": (cnn, settings.cnn)}
        found: dict[str, Any] = {"chance": 1 / classes}
        kept: dict[str, nn.Module] = {}
        for name, (body, how) in models.items():
            kept[name] = Classifier(body, *scale).to(device)
            fit(kept[name], shuffled(train, how.batch), how)
            cost = {"parameters": parameters(body), "macs": macs(body, train.images.shape[1:])}
            found[name] = {"clean": accuracy(kept[name], test), **cost}
        pictures = first(test, settings.tried)
        for name, values in _tried(kept, pictures).items():
            found[name] |= values
        return found

    def figures(self, results: Sequence[Results]) -> Sequence[Section]:
        """A table of all cases, and accuracy by strength."""
        columns = dict.fromkeys(("case", "ViT", "CNN", "ViT - CNN", _KEPT), "")
        columns |= dict.fromkeys(("ViT", "CNN", "ViT - CNN", _KEPT), "share")
        rows = [_row(results, case) for case in _CASES]
        rows += [_row(results, "corruptions", name) for name in results[0]["vit"]["corruptions"]]
        table = Table("Accuracy", columns, rows, fold_after=len(_CASES))  # type: ignore[arg-type]
        shown = {
            "strengths": ("Corruptions", [float(level) for level in _STRENGTHS], "strength"),
            "hidden": ("Occlusion", list(_SHARES), "share of the image that is hidden"),
            "attacked": ("PGD, 10 steps", [float(radius) for radius in _RADII], "radius in 1/255"),
            "moved": ("Shift", [float(pixels) for pixels in _SHIFTS], "pixels"),
        }
        charts = [
            chart(
                title,
                [line(label, x, results, name, key) for name, label in _MODELS.items()],
                f"Accuracy of both models: {title.lower()}. Means over seeds.",
                x=axis,
                y="accuracy",
            )
            for key, (title, x, axis) in shown.items()
        ]
        return (table, Group("Accuracy by strength", charts, columns=2))

    def verdict(self, results: Sequence[Results]) -> Verdict:
        """The share of the clean accuracy above chance that each keeps, and the accuracy itself."""
        checks = [
            Check(
                text=f"the ViT keeps a larger share of its accuracy above chance than the CNN: {title}",
                found=estimate(_share_gain(results, kind)),
                least=0.0,
                unit="share",
            )
            for kind, title in _KINDS.items()
        ]
        checks += [
            Check(
                text=f"its accuracy is higher: {title}",
                found=estimate([result["vit"][kind] - result["cnn"][kind] for result in results]),
                least=0.0,
                unit="share",
                essential=False,
            )
            for kind, title in _KINDS.items()
        ]
        clean = [mean(by_seed(results, name, "clean")) for name in _MODELS]
        note = (
            f"On clean images {clean[0]:.1%} (ViT) and {clean[1]:.1%} (CNN). The table of the source compares a ViT "
            "pre-trained on 300 M images with a CNN that was not"
        )
        return judge(checks, note=note)

    def true_case(self) -> Sequence[Results]:
        """A ViT that loses a tenth where the CNN loses half."""
        return [_made(vit=0.9, cnn=0.5)]

    def false_case(self) -> Sequence[Results]:
        """The reverse."""
        return [_made(vit=0.5, cnn=0.9)]


def mean(values: Sequence[float]) -> float:
    """The mean."""
    return sum(values) / len(values)


def _tried(models: Mapping[str, nn.Module], pictures: Labelled) -> dict[str, dict[str, Any]]:
    """Accuracies of models by case; all get the same distorted images, but attacks are made for each."""
    labels = pictures.classes

    def on(images: torch.Tensor) -> dict[str, float]:
        return {name: accuracy(model, Labelled(images, labels)) for name, model in models.items()}

    images = pictures.images
    corrupted = {name: [on(corrupt(images, name, level)) for level in _STRENGTHS] for name in CORRUPTIONS}
    hidden = [on(occlude(images, share)) for share in _SHARES]
    moved = [on(shift(images, pixels)) for pixels in _SHIFTS]
    drawn = on(sketch(images))
    found = {}
    for name, model in models.items():
        kinds = {kind: [level[name] for level in levels] for kind, levels in corrupted.items()}
        attacks = {
            attack.__name__: [
                accuracy(model, Labelled(attack(model, images, labels, radius / 255), labels)) for radius in _RADII
            ]
            for attack in (fgsm, pgd)
        }
        found[name] = {
            "corruptions": {kind: mean(levels) for kind, levels in kinds.items()},
            "strengths": [mean(levels) for levels in zip(*kinds.values(), strict=True)],
            "corruption": mean([mean(levels) for levels in kinds.values()]),
            "attacked": attacks["pgd"],
            "fgsm": mean(attacks["fgsm"]),
            "adversarial": mean(attacks["pgd"]),
            "hidden": [level[name] for level in hidden],
            "occlusion": mean([level[name] for level in hidden]),
            "moved": [level[name] for level in moved],
            "shift": mean([level[name] for level in moved]),
            "sketch": drawn[name],
        }
    return found


def _share_gain(results: Sequence[Results], *case: str) -> list[float]:
    """By how much the share of the clean accuracy above chance that is kept is larger for the ViT, by seed."""
    kept = {
        name: [
            _above_chance(*values)
            for values in zip(
                by_seed(results, name, *case),
                by_seed(results, name, "clean"),
                by_seed(results, "chance"),
                strict=True,
            )
        ]
        for name in _MODELS
    }
    return [vit - cnn for vit, cnn in zip(kept["vit"], kept["cnn"], strict=True)]


def _above_chance(accuracy: float, clean: float, chance: float) -> float:
    """(accuracy - chance) / (clean - chance); none is kept at chance or below, as attacks reach it."""
    return max(accuracy - chance, 0.0) / (clean - chance) if clean > chance else math.nan


def _row(results: Sequence[Results], *case: str) -> dict[str, Any]:
    vit, cnn = (by_seed(results, name, *case) for name in _MODELS)
    return {
        "case": case[-1],
        "ViT": mean(vit),
        "CNN": mean(cnn),
        "ViT - CNN": mean(vit) - mean(cnn),
        _KEPT: mean(_share_gain(results, *case)),
    }


def _made(*, vit: float, cnn: float) -> Results:
    """Results of models that keep a given share of what an accuracy of 80 % has above chance, 10 %, in every case."""

    def one(share: float) -> dict[str, Any]:
        value = 0.1 + 0.7 * share
        return {
            "clean": 0.8,
            "parameters": 1,
            "macs": 1,
            "corruptions": dict.fromkeys(CORRUPTIONS, value),
            "strengths": [value] * len(_STRENGTHS),
            "hidden": [value] * len(_SHARES),
            "attacked": [value] * len(_RADII),
            "moved": [value] * len(_SHIFTS),
            **dict.fromkeys(("corruption", "fgsm", "adversarial", "occlusion", "shift", "sketch"), value),
        }

    return {"chance": 0.1, "vit": one(vit), "cnn": one(cnn)}
