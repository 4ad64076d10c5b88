"""Norms before or after the branches: activations and gradients by depth at initialisation, and training."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vitrail.config import Count, Positive
from vitrail.lab.estimates import estimate, exponent
from vitrail.lab.experiment import PRINCIPLES, Check, Experiment, Results, Settings, Verdict, judge, limit
from vitrail.lab.plots import chart, line
from vitrail.lab.small_training import Labelled, accuracy, batches, fashion, fit
from vitrail.lab.subjects import random_vit
from vitrail.models.vit import ViT
from vitrail.report import Group, Section

Placement = Literal["pre", "post"]

_PLACEMENTS: Mapping[Placement, str] = {"pre": "pre-norm", "post": "post-norm"}
_WARM = {"cold": "without warm-up", "warm": "with warm-up"}


@dataclass(frozen=True, kw_only=True)
class NormPlacementSettings(Settings):
    """ViTs of several depths on 28 x 28 images; one of depth `trained` learns Fashion-MNIST for `steps` steps."""

    dim: Count = 32
    num_heads: Count = 2
    patch: Count = 7
    depths: tuple[int, ...] = (6, 12, 24, 48)
    images: Count = 64
    trained: Count = 24
    steps: Count = 100
    warm_up: Count = 40
    batch: Count = 32
    rate: Positive = 1e-3


class NormPlacement(Experiment):
    """The blocks of the library with Xavier weights (arXiv:2010.11929); compare arXiv:2002.04745."""

    name = "norm-placement"
    title = "Pre-norm and post-norm by depth"
    claim = (
        "In post-norm transformers activation norms grow exponentially with depth, in pre-norm ones arithmetically; "
        "that is why deep post-norm models are hard to train."
    )
    source = f"{PRINCIPLES}; The Problem of Training Deep Transformers: Layer Normalization Placement"
    prediction = (
        "The norm of the tokens of a post-norm model doubles at least from the first to the last of 48 blocks; that of "
        "a pre-norm model grows at most linearly; without warm-up, pre-norm learns more than post-norm."
    )
    falsifier = "The norm of post-norm tokens does not grow, or that of pre-norm tokens grows faster than linearly."
    quick = NormPlacementSettings()
    full = NormPlacementSettings(dim=192, num_heads=3, images=256, trained=48, steps=1500, warm_up=300, batch=256)
    seconds = 18.0
    seeds = 3

    def measure(self, settings: NormPlacementSettings, *, seed: int, device: torch.device) -> Results:
        """Norms and gradients for every depth, and four short trainings."""
        train, test = fashion(device)
        images, classes = batches(train, settings.images)()
        found: dict[str, Any] = {"depths": list(settings.depths)}
        for placement in _PLACEMENTS:
            looks = [_look(_model(settings, placement, depth).to(device), images, classes) for depth in settings.depths]
            found[placement] = {key: [look[key] for look in looks] for key in looks[0]}
        found["training"] = {
            placement: {warm: _train(settings, placement, warm, train, test) for warm in _WARM}
            for placement in _PLACEMENTS
        }
        return found

    def figures(self, results: Sequence[Results]) -> Sequence[Section]:
        """Norms and gradients by block of the deepest model, and the loss of training."""
        blocks = [float(index) for index in range(1, len(results[0]["pre"]["stream"][-1]) + 1)]
        deepest: list[Results] = [
            {name: {key: values[-1] for key, values in result[name].items()} for name in _PLACEMENTS}
            for result in results
        ]
        norms = [line(title, blocks, deepest, name, "stream") for name, title in _PLACEMENTS.items()]
        norms.append(line("post-norm, sums before the norm", blocks, deepest, "post", "sums"))
        gradients = [line(title, blocks, deepest, name, "gradients") for name, title in _PLACEMENTS.items()]
        steps = [float(index) for index in range(len(results[0]["training"]["pre"]["cold"]["losses"]))]
        losses = [
            line(f"{title}, {how}", steps, results, "training", name, warm, "losses")
            for name, title in _PLACEMENTS.items()
            for warm, how in _WARM.items()
        ]
        shown = (
            chart("Activations", norms, "Mean norm of the tokens after each block.", x="block", y="norm", log_y=True),
            chart("Gradients", gradients, "Norm of the gradient of a block.", x="block", y="norm", log_y=True),
        )
        ends: list[dict[str, Any]] = [
            {name: [values[-1] for values in result[name]["stream"]] for name in _PLACEMENTS} for result in results
        ]
        by_depth = [line(title, results[0]["depths"], ends, name) for name, title in _PLACEMENTS.items()]
        last = "Mean norm of the tokens after the last block, for models of several depths."
        text = "Training loss, the mean of ten steps."
        return (
            Group("At initialisation, the deepest model", shown, columns=2),
            chart("Activations by depth", by_depth, last, x="blocks", y="norm", log_x=True, log_y=True),
            chart("Training", losses, text, x="tens of steps", y="loss"),
        )

    def verdict(self, results: Sequence[Results]) -> Verdict:
        """Growth of activations; then gradients and training."""
        growth = {key: estimate([_ratio(result["post"][key][-1]) for result in results]) for key in ("stream", "sums")}
        power = estimate([_power(result["pre"]["stream"][-1]) for result in results])
        uneven = estimate([_uneven(result["post"]) / _uneven(result["pre"]) for result in results])

        accuracies = [
            {name: {warm: result["training"][name][warm]["accuracy"] for warm in _WARM} for name in _PLACEMENTS}
            for result in results
        ]
        cold = estimate([found["pre"]["cold"] - found["post"]["cold"] for found in accuracies])
        helped = {
            name: estimate([found[name]["warm"] - found[name]["cold"] for found in accuracies]) for name in _PLACEMENTS
        }
        return judge(
            [
                Check(
                    text="post-norm tokens double their norm or more over the deepest model",
                    found=growth["stream"],
                    least=2,
                ),
                Check(text="pre-norm tokens grow at most linearly (exponent in depth)", found=power, most=1.05),
                limit("the sums before the post-norms double, at least", growth["sums"], least=2),
                limit("gradients are less even over the blocks in post-norm (ratio of max / min)", uneven, least=2),
                limit("pre-norm learns more than post-norm without warm-up (accuracy)", cold, least=0.1),
                limit("warm-up helps post-norm (accuracy)", helped["post"], least=0.05),
                limit("pre-norm does without warm-up (accuracy that warm-up adds)", helped["pre"], most=0.1),
            ],
            note="A post-norm sets every token to the norm of its gain: that its activations grow is not the reason",
        )

    def true_case(self) -> Sequence[Results]:
        """Branches without norms, whose sums grow by a factor, and training that goes with the claim."""
        return [_case(growth=1.1, learns=False)]

    def false_case(self) -> Sequence[Results]:
        """Tokens that a norm sets to the same length after every block."""
        return [_case(growth=1.0, learns=True)]


def _model(settings: NormPlacementSettings, placement: Placement, depth: int) -> ViT:
    """A classifier of ten classes; its head is not zero, so that gradients flow before the first step."""
    model = random_vit(
        dim=settings.dim, depth=depth, num_heads=settings.num_heads, image_size=28, patch=settings.patch,
        norm_placement=placement, num_classes=10, channels=1,
    )  # fmt: skip
    nn.init.xavier_uniform_(model.get_submodule("head").weight)  # type: ignore[arg-type]
    return model


def _look(model: ViT, images: Tensor, classes: Tensor) -> Mapping[str, list[float]]:
    """By block: the mean norm of the tokens after it, the largest of what enters its norms, and of its gradient."""
    entering: list[float] = []
    hooks = [
        block.get_submodule(name).register_forward_pre_hook(lambda _, inputs: entering.append(_norm(inputs[0])))
        for block in model.blocks
        for name in ("norm1", "norm2")
    ]
    stream = [_norm(features.patches) for features in model.intermediates(images)]
    for hook in hooks:
        hook.remove()
    loss = nn.functional.cross_entropy(model(images), classes)
    model.zero_grad()
    loss.backward()
    gradients = [
        math.sqrt(sum(float(one.grad.square().sum()) for one in block.parameters() if one.grad is not None))
        for block in model.blocks
    ]
    sums = [max(pair) for pair in zip(entering[::2], entering[1::2], strict=True)]
    return {"stream": stream, "sums": sums, "gradients": gradients}


def _norm(tokens: Tensor) -> float:
    return float(tokens.detach().norm(dim=-1).mean())


def _train(
    settings: NormPlacementSettings, placement: Placement, warm: str, train: Labelled, test: Labelled
) -> Results:
    """The loss by tens of steps, and the accuracy on test images after the last."""
    model = _model(settings, placement, settings.trained).to(train.images.device)
    losses = fit(
        model,
        batches(train, settings.batch),
        steps=settings.steps,
        rate=settings.rate,
        warm_up=settings.warm_up if warm == "warm" else 0,
    )
    tens = [sum(losses[start : start + 10]) / len(losses[start : start + 10]) for start in range(0, len(losses), 10)]
    return {"losses": tens, "accuracy": accuracy(model, Labelled(test.images[::2], test.classes[::2]))}


def _ratio(values: Sequence[float]) -> float:
    return values[-1] / values[0]


def _power(values: Sequence[float]) -> float:
    """The exponent of values by block, from a quarter of the blocks on."""
    first = len(values) // 4
    return exponent(range(first, len(values) + 1), values[first - 1 :])


def _uneven(found: Mapping[str, Any]) -> float:
    gradients = found["gradients"][-1]
    return float(max(gradients) / min(gradients))


def _case(*, growth: float, learns: bool) -> Results:
    depth = 24
    post = [growth**block for block in range(depth)]
    pre = [1.0 + 0.1 * block for block in range(depth)]
    even = [1.0] * depth
    steep = [growth ** (2 * block) for block in range(depth)]
    good, bad = {"losses": [2.3, 0.5], "accuracy": 0.8}, {"losses": [2.3, 2.3], "accuracy": 0.1}
    return {
        "depths": [depth],
        "pre": {"stream": [pre], "sums": [pre], "gradients": [even]},
        "post": {"stream": [post], "sums": [post], "gradients": [steep]},
        "training": {
            "pre": {"cold": good, "warm": good},
            "post": {"cold": good if learns else bad, "warm": good},
        },
    }
