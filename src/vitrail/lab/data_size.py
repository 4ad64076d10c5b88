"""A ViT against CNNs by the number of training images: accuracy, convergence, time and memory."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from vitrail.config import Count, CountFromZero, Positive
from vitrail.lab.estimates import by_seed, estimate
from vitrail.lab.experiment import NEW_APPROACH, Check, Experiment, Results, Settings, Verdict, condition, judge, limit
from vitrail.lab.fitting import Fit, first, fit, looker, open_pictures, shuffled
from vitrail.lab.plots import chart, line
from vitrail.lab.small_models import Classifier, macs, parameters, small_cnn, small_vit
from vitrail.lab.small_training import Labelled, accuracy
from vitrail.lab.tuned import choose, chosen
from vitrail.report import Group, Section, Table

_MODELS = {"vit": "ViT", "cnn_macs": "CNN of equal MACs", "cnn_parameters": "CNN of equal parameters"}
_CNNS = ("cnn_macs", "cnn_parameters")
_NEVER = 1e4  # times the images: counts as this where the ViT is not as accurate with any number of them


@dataclass(frozen=True, kw_only=True)
class DataSizeSettings(Settings):
    """Datasets, shares of their training images with the steps for each, and rates to choose from on held-out images.

    One rate is chosen with the fewest images, for them, and one with all images, for all other shares. With the fewest
    images models are to fit all of them; with all images they are trained again for half the steps.
    """

    data: tuple[str, ...] = ("demo",)
    train: CountFromZero = 0
    validation: Count = 1000
    test: CountFromZero = 2000
    shares: tuple[Positive, ...] = (0.01, 0.05, 0.25, 1.0)
    steps: tuple[Count, ...] = (200, 200, 200, 200)
    rates: tuple[Positive, ...] = (3e-3, 9e-3, 2.7e-2, 8.1e-2, 0.243)
    tuning: Count = 60  # steps with each rate
    looks: Count = 10
    dim: Count = 48
    depth: Count = 4
    patch: Count = 7
    equal_macs: tuple[Count, ...] = (14, 28, 56)
    equal_parameters: tuple[Count, ...] = (20, 40, 80)
    strides: tuple[Count, ...] = (2, 1, 2, 2)
    how: Fit = Fit()  # but the steps and the rate


class DataSize(Experiment):
    """All models take the same steps with the same images; each has its best rate of a small grid.

    The answer is to concern the number of images, not how fast a model learns: the verdict is undecided where a model
    does not fit the fewest images, or where its accuracy with all images still rises with the number of steps.
    """

    name = "data-size"
    title = "A ViT and CNNs by the number of images"
    claim = "With few images a CNN is better and converges faster; a ViT needs 10 to 100 times the images, then wins."
    source = (
        f"{NEW_APPROACH}; The Trade-off: Inductive Bias vs Data; Data Efficiency Test; Data Scaling; Convergence "
        "Behavior; Memory and Storage Requirements; Key Observations"
    )
    prediction = (
        "With 1 % of the images, CNNs of equal cost are more accurate; their lead shrinks as images are added; they "
        "are ahead after a tenth of the training, and the ViT needs 10 to 100 times the images for the same accuracy."
    )
    falsifier = "The ViT is as good with few images, or the lead of the CNN does not shrink."
    quick = DataSizeSettings()
    full = DataSizeSettings(
        data=("cifar10", "fashion-mnist"),
        validation=5000,
        test=0,
        shares=(0.01, 0.1, 1.0),
        steps=(600, 1200, 3000),
        rates=(1e-3, 3e-3, 9e-3, 2.7e-2, 8.1e-2),
        tuning=300,
        looks=20,
        dim=128,
        depth=4,
        patch=4,
        equal_macs=(64, 128, 256),
        equal_parameters=(52, 104, 208),
        strides=(1, 2, 2, 2),
        how=Fit(batch=256, precision="bf16"),
    )
    seconds = 40.0
    seeds = 3

    def measure(self, settings: DataSizeSettings, *, seed: int, device: torch.device) -> Results:
        """By dataset and model: accuracy by share, the curve of the largest share, rates, costs, time and memory."""
        return {name: _on(name, settings, device) for name in settings.data}

    def figures(self, results: Sequence[Results]) -> Sequence[Section]:
        """Accuracy by images, curves while training, and a table of costs."""
        sections: list[Section] = []
        for data, one in results[0].items():
            sizes, steps = one["images"], one["steps"]
            charts = [
                chart("Accuracy by images", [line(title, sizes, results, data, name, "accuracy")
                                             for name, title in _MODELS.items()],
                      "On test images; all models take the same steps.", x="training images", y="accuracy", log_x=True),
                chart("While training", [line(title, steps, results, data, name, "looks")
                                         for name, title in _MODELS.items()],
                      "With all images.", x="steps", y="accuracy on test images"),
            ]  # fmt: skip
            columns = {"model": "", "parameters": "si", "MACs": "si", "images/s, training": "si"}
            columns |= {"kept for the backward pass, an image": "bytes", "rate": "", "rate, fewest images": ""}
            rows = [
                {"model": title, "parameters": one[name]["parameters"], "MACs": one[name]["macs"],
                 "images/s, training": fmean(by_seed(results, data, name, "speed")),
                 "kept for the backward pass, an image": one[name]["kept"], "rate": _rates(results, data, name, "rate"),
                 "rate, fewest images": _rates(results, data, name, "rate_few")}
                for name, title in _MODELS.items()
            ]  # fmt: skip
            table = Table("Costs", columns, rows)  # type: ignore[arg-type]
            sections.append(Group(data, (Group("", charts, columns=2), table)))
        return sections

    def verdict(self, results: Sequence[Results]) -> Verdict:
        """Lead with few images, its change, convergence, the ratio of images, memory and speed."""
        checks: list[Check] = []
        conditions: list[Check] = []
        for data in results[0]:
            fitted = min(result[data][name]["fitted"][0] for result in results for name in _MODELS)
            gained = max(
                fmean(result[data][name]["accuracy"][-1] - result[data][name]["half"] for result in results)
                for name in _MODELS
            )
            conditions += [
                condition(f"all models fit the fewest images: 99 % of them are right, in every seed ({data})",
                          estimate([fitted]), least=0.99, unit="share"),
                condition(f"twice the steps raise the accuracy of no model by more than 3 points, as a mean, with all "
                          f"images ({data})", estimate([gained]), most=0.03, unit="share"),
            ]  # fmt: skip
            for name in _CNNS:
                title = f"{_MODELS[name]}, {data}"
                few, many = ([result[data][name]["accuracy"][at] - result[data]["vit"]["accuracy"][at]
                              for result in results] for at in (0, -1))  # fmt: skip
                early = [early_lead(result[data], name) for result in results]
                shrinks = [a - b for a, b in zip(few, many, strict=True)]
                checks += [
                    Check(text=f"with the fewest images it leads ({title})", found=estimate(few), least=0.0,
                          unit="share"),
                    Check(text=f"its lead shrinks with all images ({title})", found=estimate(shrinks), least=0.0,
                          unit="share"),
                    limit(f"with all images the ViT is ahead ({title})", estimate(many), most=0.0, unit="share"),
                    limit(f"it leads after the first tenth of training ({title})", estimate(early), least=0.0,
                          unit="share"),
                    limit(f"the ViT needs 10 to 100 times the images for its accuracy with the fewest ({title})",
                          estimate([min(ratio(result[data], name), _NEVER) for result in results]), least=10.0,
                          most=100.0),
                ]  # fmt: skip
            kept = [result[data]["vit"]["kept"] / result[data]["cnn_macs"]["kept"] for result in results]
            fast = [result[data]["vit"]["speed"] / result[data]["cnn_macs"]["speed"] for result in results]
            checks += [
                limit(f"training the ViT keeps more memory than the CNN of equal MACs ({data})", estimate(kept),
                      least=1.0),
                limit(f"it takes more time for an image than that CNN ({data})", estimate(fast), most=1.0),
            ]  # fmt: skip
        return judge(checks, conditions=conditions)

    def true_case(self) -> Sequence[Results]:
        """A CNN that leads with few images and a ViT that overtakes it, slower and larger."""
        return [_made([0.2, 0.4, 0.6, 0.9], [0.55, 0.65, 0.7, 0.8], early=(0.1, 0.5))]

    def false_case(self) -> Sequence[Results]:
        """A ViT that leads everywhere."""
        return [_made([0.6, 0.7, 0.8, 0.9], [0.3, 0.4, 0.5, 0.6], early=(0.5, 0.1))]


def ratio(found: Results, cnn: str) -> float:
    """How many times the fewest images the ViT needs to be as accurate as the CNN is with them.

    Accuracy is read between sizes along straight lines in log images; infinite where the ViT never gets there.
    """
    sizes, wanted = found["images"], found[cnn]["accuracy"][0]
    reached = np.maximum.accumulate(found["vit"]["accuracy"])
    if reached[-1] < wanted:
        return math.inf
    return float(np.exp(np.interp(wanted, reached, np.log(sizes)))) / float(sizes[0])


def early_lead(found: Results, cnn: str) -> float:
    """By how much the CNN is ahead at the first look after a tenth of the training or more."""
    at = next(index for index, step in enumerate(found["steps"]) if step >= found["steps"][-1] / 10)
    return float(found[cnn]["looks"][at] - found["vit"]["looks"][at])


def _rates(results: Sequence[Results], data: str, name: str, which: str) -> str:
    """The rates that were chosen, by seed."""
    return ", ".join(f"{result[data][name][which]['chosen']:g}" for result in results)


def kept_bytes(model: nn.Module, images: torch.Tensor) -> float:
    """Bytes an image of what a training pass keeps for the backward pass, weights aside."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    seen: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    model.train()
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        model(images).sum().backward()
    model.zero_grad()
    return sum(seen.values()) / len(images)


def _on(data: str, settings: DataSizeSettings, device: torch.device) -> dict[str, Any]:
    """The measurements on one dataset."""
    train, test = open_pictures(data, settings.train, settings.test, device)
    held = first(train, settings.validation)
    train = Labelled(train.images[settings.validation :], train.classes[settings.validation :])
    sizes = [max(round(share * len(train.classes)), 1) for share in settings.shares]
    longest = settings.steps[-1]
    every = max(longest // settings.looks, 1)
    found: dict[str, Any] = {"images": sizes, "steps": [every * (look + 1) for look in range(settings.looks)]}
    for name in _MODELS:
        few, rate = (_rate(name, settings, first(train, size), held) for size in (sizes[0], sizes[-1]))
        how = replace(settings.how, rate=rate["chosen"])
        reached: list[float] = []
        looks: list[float] = []
        fitted = []
        halved = _model(name, settings, train)
        fit(halved, shuffled(train, how.batch), replace(how, steps=max(longest // 2, 1)))
        for size, steps in zip(sizes, settings.steps, strict=True):
            model = _model(name, settings, train)
            some = first(train, size)
            after = looker(model, test, every, looks) if size == sizes[-1] else None
            best = (few if size == sizes[0] else rate)["chosen"]
            fit(model, shuffled(some, how.batch), replace(how, steps=steps, rate=best), after=after)
            reached.append(accuracy(model, test))
            fitted.append(accuracy(model, some))
        batch = first(train, how.batch)
        found[name] = {
            "rate": rate, "rate_few": few, "accuracy": reached, "fitted": fitted, "half": accuracy(halved, test),
            "looks": looks,
            "parameters": parameters(model),
            "macs": macs(model, train.images.shape[1:]), "kept": kept_bytes(model, batch.images[:16]),
            "speed": _speed(model, batch, how),
        }  # fmt: skip
    return found


def _rate(name: str, settings: DataSizeSettings, some: Labelled, held: Labelled) -> dict[str, Any]:
    """The rate with the highest accuracy on held-out images after a short training on some images."""

    def tried(rate: float) -> float:
        model = _model(name, settings, some)
        fit(model, shuffled(some, settings.how.batch), replace(settings.how, steps=settings.tuning, rate=rate))
        return accuracy(model, held)

    return choose(settings.rates, tried)


def _speed(model: nn.Module, batch: Labelled, how: Fit) -> float:
    """Images a second in training: the best of three trials; on a CPU of five steps, in seconds of the processor."""
    on_cpu = batch.images.device.type == "cpu"
    first, last = (1, 6) if on_cpu else (100, 300)  # by then steps are recorded on a GPU
    best = 0.0
    for _ in range(3):
        marks: list[float] = []

        def after(done: int, marks: list[float] = marks) -> None:
            if done in (first, last):
                if not on_cpu:
                    torch.cuda.synchronize()
                marks.append(time.process_time() if on_cpu else time.perf_counter())

        fit(model, lambda: batch, replace(how, steps=last, rate=1e-6), after=after)
        best = max(best, (last - first) * len(batch.classes) / (marks[1] - marks[0]))
    return best


def _model(name: str, settings: DataSizeSettings, train: Labelled) -> nn.Module:
    channels, side = train.images.shape[1:3]
    classes = int(train.classes.max()) + 1
    if name == "vit":
        body: nn.Module = small_vit(dim=settings.dim, depth=settings.depth, patch=settings.patch, image_size=side,
                                    channels=channels, num_classes=classes)  # fmt: skip
    else:
        widths = settings.equal_macs if name == "cnn_macs" else settings.equal_parameters
        body = small_cnn(widths, settings.strides, channels=channels, num_classes=classes)
    model = Classifier(body, float(train.images.mean()), float(train.images.std()))
    return model.to(train.images.device)


def _made(vit: Sequence[float], cnn: Sequence[float], *, early: tuple[float, float]) -> Results:
    def one(values: Sequence[float], start: float, cost: float) -> dict[str, Any]:
        rate = chosen(3e-3, [1e-3, 3e-3, 9e-3])
        return {"rate": rate, "rate_few": rate, "accuracy": list(values), "fitted": [1.0], "half": values[-1],
                "looks": [start, values[-1]], "parameters": 1, "macs": 1, "kept": cost,
                "speed": 1 / cost}  # fmt: skip

    found: dict[str, Any] = {"images": [100, 500, 2500, 10_000], "steps": [10, 20], "vit": one(vit, early[0], 2.0)}
    return {"made": found | {name: one(cnn, early[1], 1.0) for name in _CNNS}}
