"""Tasks in which parts that are far apart decide together: a ViT, a CNN that sees far, and one that does not."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from vitrail.config import Count
from vitrail.lab.estimates import estimate
from vitrail.lab.experiment import PRINCIPLES, Check, Experiment, Results, Settings, Verdict, judge, limit
from vitrail.lab.fitting import Fit, fit, looker
from vitrail.lab.long_range_pictures import Match, hidden_core, paired_halves
from vitrail.lab.plots import chart, line
from vitrail.lab.small_models import Classifier, macs, parameters, small_cnn, small_vit
from vitrail.lab.small_training import Draw, Labelled, accuracy
from vitrail.report import Group, Section, Table

_CELL = 4
_MODELS = {"vit": "ViT", "wide": "CNN that sees far", "local": "CNN that sees near"}
_TASKS = {
    "mark": "counting halves with the same mark",
    "row": "counting halves in the same row",
    "hidden": "core hidden, marks compared",
}
_NEEDED = ("mark", "hidden")  # what the claim speaks of


@dataclass(frozen=True, kw_only=True)
class LongRangeSettings(Settings):
    """Images of side x side cells of 4 x 4 pixels; `distance` cells lie between the two parts."""

    side: Count = 4
    distance: Count = 3
    dim: Count = 32
    depth: Count = 2
    wide: tuple[Count, ...] = (12, 24, 48)
    wide_strides: tuple[Count, ...] = (2, 1, 2, 2)
    local: tuple[Count, ...] = (9,)
    local_strides: tuple[Count, ...] = (1, 1)
    test: Count = 1000
    looks: Count = 5
    vit: Fit = Fit(steps=500, rate=3e-3, weight_decay=0.01)
    cnn: Fit = Fit(steps=500, rate=3e-3, weight_decay=0.01)


class LongRange(Experiment):
    """Images are made anew for every batch, so that nothing is learned by heart."""

    name = "long-range"
    title = "Parts that are far apart: counting, and a hidden core"
    claim = (
        "Where distant parts must be matched (counting objects of two far halves, seeing past an occluder), a ViT "
        "succeeds and a CNN with local windows fails."
    )
    source = f"{PRINCIPLES}; Global vs. Local Information Processing"
    prediction = (
        "Where halves have to be matched by their marks, and where the core is hidden, a ViT is right more often than "
        "a CNN of equal cost whose receptive field cannot hold both parts; that CNN does no better than a guess."
    )
    falsifier = "The ViT does not learn the tasks, or the local CNN is as good."
    quick = LongRangeSettings()
    full = LongRangeSettings(
        side=12,
        distance=9,
        dim=96,
        depth=6,
        wide=(80, 108, 160, 216),
        wide_strides=(2, 1, 2, 2, 2),
        local=(84, 144),
        local_strides=(2, 1, 2),
        test=10_000,
        looks=10,
        vit=Fit(steps=3000, batch=128, rate=1e-3, weight_decay=0.01, precision="bf16"),
        cnn=Fit(steps=3000, batch=128, rate=2e-3, weight_decay=0.01, precision="bf16"),
    )
    seconds = 40.0
    seeds = 3

    def measure(self, settings: LongRangeSettings, *, seed: int, device: torch.device) -> Results:
        """Accuracy of each model for each task, at the end and while training."""
        found: dict[str, Any] = {}
        for task in _TASKS:
            train, test = _draws(task, settings, device)
            pictures = test()
            for name in _MODELS:
                body, how = _built(name, settings, _classes(task, settings))
                model = Classifier(body, 0.25, 0.25).to(device)
                looks: list[float] = []
                every = max(how.steps // settings.looks, 1)
                fit(model, train(how.batch), how, after=looker(model, pictures, every, looks))
                shape = (1, settings.side * _CELL, settings.side * _CELL)
                found.setdefault(name, {"parameters": parameters(body), "macs": macs(body, shape)})[task] = {
                    "accuracy": accuracy(model, pictures),
                    "looks": looks,
                    "steps": [every * (look + 1) for look in range(len(looks))],
                }
        return found | {"chance": {task: 1 / _classes(task, settings) for task in _TASKS}}

    def figures(self, results: Sequence[Results]) -> Sequence[Section]:
        """Accuracy by step for each task, and a table of accuracies and costs."""
        charts = [
            chart(
                title,
                [line(label, results[0][name][task]["steps"], results, name, task, "looks")
                 for name, label in _MODELS.items()],
                f"Accuracy on new pictures while training: {title}.", x="steps", y="accuracy",
            )
            for task, title in _TASKS.items()
        ]  # fmt: skip
        columns = {"model": "", "parameters": "si", "MACs": "si"}
        columns |= dict.fromkeys(_TASKS.values(), "share")
        rows = [
            {"model": label, "parameters": results[0][name]["parameters"], "MACs": results[0][name]["macs"]}
            | {title: _mean(results, name, task, "accuracy") for task, title in _TASKS.items()}
            for name, label in _MODELS.items()
        ]
        return (Table("Accuracy at the end", columns, rows), Group("While training", charts, columns=2))  # type: ignore[arg-type]

    def verdict(self, results: Sequence[Results]) -> Verdict:
        """ViT against the local CNN, and against the one that sees far."""
        checks: list[Check] = []
        for task, title in _TASKS.items():
            vit, wide, local = ([result[name][task]["accuracy"] for result in results] for name in _MODELS)
            needed = task in _NEEDED
            checks += [
                Check(text=f"the ViT learns the task: accuracy above 90 % ({title})", found=estimate(vit), least=0.9,
                      unit="share", essential=needed),
                Check(text=f"it is right more often than the CNN that sees near, by 10 points ({title})",
                      found=estimate([a - b for a, b in zip(vit, local, strict=True)]), least=0.1, unit="share",
                      essential=needed),
                limit(f"the CNN that sees near fails: at most 5 points above chance ({title})", estimate(local),
                      most=results[0]["chance"][task] + 0.05, unit="share"),
                limit(f"the ViT is right more often than a CNN that sees far, too ({title})",
                      estimate([a - b for a, b in zip(vit, wide, strict=True)]), least=0.0, unit="share"),
            ]  # fmt: skip
        return judge(checks, note="What decides is the receptive field: strides give it to a CNN, too")

    def true_case(self) -> Sequence[Results]:
        """A ViT that is always right, and CNNs that guess."""
        return [_made({"vit": 1.0, "wide": 0.5, "local": 0.25})]

    def false_case(self) -> Sequence[Results]:
        """The reverse."""
        return [_made({"vit": 0.25, "wide": 0.5, "local": 1.0})]


def _draws(
    task: str, settings: LongRangeSettings, device: torch.device
) -> tuple[Callable[[int], Draw], Callable[[], Labelled]]:
    """Batches to train on by their size, and test pictures, in all of which the core is hidden."""
    side, distance = settings.side, settings.distance
    if task == "hidden":
        return (
            lambda batch: lambda: hidden_core(batch, distance, hidden=0.5, side=side, device=device),
            lambda: hidden_core(settings.test, distance, hidden=1.0, side=side, device=device),
        )
    match: Match = "mark" if task == "mark" else "row"
    return (
        lambda batch: lambda: paired_halves(batch, distance, match, side=side, device=device),
        lambda: paired_halves(settings.test, distance, match, side=side, device=device),
    )


def _built(name: str, settings: LongRangeSettings, num_classes: int) -> tuple[nn.Module, Fit]:
    if name == "vit":
        side = settings.side * _CELL
        body = small_vit(
            dim=settings.dim,
            depth=settings.depth,
            patch=_CELL,
            image_size=side,
            channels=1,
            num_classes=num_classes,
            position="sincos2d",
        )
        return body, settings.vit
    widths, strides = (
        (settings.wide, settings.wide_strides) if name == "wide" else (settings.local, settings.local_strides)
    )
    return small_cnn(widths, strides, channels=1, num_classes=num_classes), settings.cnn


def _classes(task: str, settings: LongRangeSettings) -> int:
    """The number of classes, which are equally frequent."""
    return 2 if task == "hidden" else settings.side // 2 + 1


def _mean(results: Sequence[Results], *path: str) -> float:
    values = []
    for result in results:
        value: Any = result
        for key in path:
            value = value[key]
        values.append(float(value))
    return sum(values) / len(values)


def _made(shares: Mapping[str, float]) -> Results:
    """Results of models that are right with given shares."""

    def one(share: float) -> dict[str, Any]:
        return {"accuracy": share, "looks": [0.2, share], "steps": [1, 2]}

    made: dict[str, Any] = {
        name: {"parameters": 1, "macs": 1, **{task: one(share) for task in _TASKS}} for name, share in shares.items()
    }
    return made | {"chance": {"mark": 0.25, "row": 0.25, "hidden": 0.5}}
