"""Entropy of attention against the generalisation gap, over many small runs that differ in how they were trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.config import Count, CountFromZero
from vitrail.lab.estimates import curve, estimate
from vitrail.lab.experiment import FOUNDATIONS, Check, Experiment, Results, Settings, Verdict, judge
from vitrail.lab.fitting import Fit, fit, mean_loss, open_pictures, shuffled
from vitrail.lab.plots import chart, line
from vitrail.lab.small_models import Classifier, small_vit
from vitrail.lab.small_training import accuracy
from vitrail.lab.subjects import attention_inputs
from vitrail.report import Section, Table
from vitrail.report.intervals import scipy_stats

_KNOBS = {  # how runs differ: each range is drawn from evenly in the logarithm
    "rate": (5e-4, 8e-3),
    "weight_decay": (1e-3, 1.0),
    "steps": (0.25, 1.0),  # of the steps of the settings
    "logit_scale": (0.3, 3.0),  # of queries at the start
}
_NOTHING = 1e-9  # of a rank: what rounding leaves


@dataclass(frozen=True, kw_only=True)
class AttentionEntropySettings(Settings):
    """`runs` trainings on the same few images."""

    data: str = "demo"
    train: CountFromZero = 500
    test: CountFromZero = 1000
    runs: Count = 16
    dim: Count = 32
    depth: Count = 2
    patch: Count = 7
    looked_at: Count = 200
    how: Fit = Fit(steps=240, batch=64)


class AttentionEntropy(Experiment):
    """Rank correlations over runs, as they are and with the training loss held fixed."""

    name = "attention-entropy"
    title = "Entropy of attention and generalisation"
    claim = "Higher attention entropy correlates with better generalisation."
    source = f"{FOUNDATIONS}; Generalization Theory (Attention Entropy and Generalization)"
    prediction = (
        "Over runs that differ in rate, weight decay, length and scale of the first logits, the rank correlation of "
        "entropy with the gap between held-out and training loss is negative, also among runs of equal training loss."
    )
    falsifier = "The correlation is not negative."
    quick = AttentionEntropySettings()
    full = AttentionEntropySettings(
        data="cifar10",
        train=5000,
        test=0,
        runs=24,
        dim=96,
        depth=6,
        patch=4,
        how=Fit(steps=800, batch=128, precision="bf16"),
    )
    seconds = 25.0
    seeds = 3

    def measure(self, settings: AttentionEntropySettings, *, seed: int, device: torch.device) -> Results:
        """Entropy, losses and accuracies of each run, and the correlations over all of them."""
        train, test = open_pictures(settings.data, settings.train, settings.test, device)
        scale = float(train.images.mean()), float(train.images.std())
        runs = []
        for _ in range(settings.runs):
            drawn = {name: low * (high / low) ** float(torch.rand(())) for name, (low, high) in _KNOBS.items()}
            body = small_vit(dim=settings.dim, depth=settings.depth, patch=settings.patch,
                             image_size=train.images.shape[2], channels=train.images.shape[1],
                             num_classes=10)  # fmt: skip
            _scale_queries(body, drawn["logit_scale"])
            model = Classifier(body, *scale).to(device)
            steps = max(round(settings.how.steps * drawn["steps"]), 1)
            how = replace(settings.how, steps=steps, rate=drawn["rate"], weight_decay=drawn["weight_decay"])
            fit(model, shuffled(train, how.batch), how)
            seen = (test.images[: settings.looked_at] - scale[0]) / scale[1]
            runs.append(
                {
                    "entropy": _entropy(body, seen),
                    "train_loss": mean_loss(model, train),
                    "test_loss": mean_loss(model, test),
                    "train_accuracy": accuracy(model, train),
                    "test_accuracy": accuracy(model, test),
                }
                | drawn
            )
        return {"runs": runs, **correlations(runs)}

    def figures(self, results: Sequence[Results]) -> Sequence[Section]:
        """Runs as points, and the correlations by seed."""
        grouped = [_groups(result["runs"]) for result in results]
        middle = [mean.value for mean in curve(grouped, "entropy")]
        picture = chart(
            "Gap by entropy",
            [line("gap of the loss", middle, grouped, "gap"), line("training loss", middle, grouped, "train_loss")],
            "Runs in four groups by entropy: the mean of each, over seeds.",
            x="entropy / log N",
            y="cross-entropy",
        )
        rows = [
            {"seed": number, **{title: result[key] for key, title in _COLUMNS.items()}}
            for number, result in enumerate(results)
        ]
        columns = dict.fromkeys(("seed", *_COLUMNS.values()), "")
        return (picture, Table("Rank correlations (Spearman)", columns, rows))  # type: ignore[arg-type]

    def verdict(self, results: Sequence[Results]) -> Verdict:
        """The correlations, plain and partial."""
        found = {key: estimate([float(result[key]) for result in results]) for key in _COLUMNS}
        return judge(
            [
                Check(text="entropy goes with a smaller gap of the loss: rank correlation below 0",
                      found=found["gap"], most=0.0),
                Check(text="the same among runs of equal training loss (partial rank correlation)",
                      found=found["gap_given_train"], most=0.0, essential=False),
                Check(text="entropy goes with a higher accuracy on held-out images",
                      found=found["accuracy"], least=0.0, essential=False),
            ],
            note="A smaller gap is not a better model: runs that learn little have none",
        )  # fmt: skip

    def true_case(self) -> Sequence[Results]:
        """Runs in which the gap falls with entropy and with nothing else."""
        return [_made(sign=-1)]

    def false_case(self) -> Sequence[Results]:
        """Runs in which it grows with entropy."""
        return [_made(sign=1)]


_COLUMNS = {
    "gap": "entropy and gap",
    "gap_given_train": "entropy and gap, given the training loss",
    "accuracy": "entropy and held-out accuracy",
    "train": "entropy and training loss",
}


def correlations(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Spearman's correlation of entropy with the gap, the accuracy and the training loss, and a partial one."""
    entropy, train = ([run[key] for run in runs] for key in ("entropy", "train_loss"))
    gap = [run["test_loss"] - run["train_loss"] for run in runs]
    return {
        "gap": _spearman(entropy, gap),
        "gap_given_train": partial_spearman(entropy, gap, train),
        "accuracy": _spearman(entropy, [run["test_accuracy"] for run in runs]),
        "train": _spearman(entropy, train),
    }


def partial_spearman(x: Sequence[float], y: Sequence[float], given: Sequence[float]) -> float:
    """The correlation of the ranks of x and y after a straight line in the ranks of `given` is taken from both.

    It is 0 where the ranks of `given` leave nothing of one of them.
    """
    if min(given) == max(given):
        return _spearman(x, y)
    stats = scipy_stats()
    ranks = [stats.rankdata(values) for values in (x, y, given)]
    left = []
    for values in ranks[:2]:
        line_through = stats.linregress(ranks[2], values)
        left.append(values - line_through.intercept - line_through.slope * ranks[2])
    if min(float(abs(values).max()) for values in left) < _NOTHING:
        return 0.0
    return float(stats.pearsonr(*left).statistic)


def _groups(runs: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Means over each quarter of the runs in the order of entropy."""
    ordered = sorted(runs, key=lambda run: run["entropy"])
    parts = [ordered[len(ordered) * part // 4 : len(ordered) * (part + 1) // 4] for part in range(4)]
    return {
        "entropy": [fmean(run["entropy"] for run in part) for part in parts],
        "gap": [fmean(run["test_loss"] - run["train_loss"] for run in part) for part in parts],
        "train_loss": [fmean(run["train_loss"] for run in part) for part in parts],
    }


def _spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """The rank correlation; 0 where one of both is the same everywhere."""
    if min(x) == max(x) or min(y) == max(y):
        return 0.0
    return float(scipy_stats().spearmanr(x, y).statistic)


@torch.no_grad()
def _entropy(model: Any, images: Tensor) -> float:
    """The mean entropy of the rows of attention over layers, heads and images, as a share of log N."""
    shares = []
    for layer, tokens, grid in attention_inputs(model, images):
        weights = layer.weights(tokens, grid)
        shares.append(torch.special.entr(weights).sum(dim=-1).mean() / torch.log(torch.tensor(weights.shape[-1])))
    return float(torch.stack(shares).mean())


@torch.no_grad()
def _scale_queries(model: nn.Module, factor: float) -> None:
    """Multiplies the first maps to queries."""
    for name, parameter in model.named_parameters():
        if name.endswith("qkv.weight"):
            parameter[: parameter.shape[0] // 3] *= factor


def _made(*, sign: int) -> Results:
    """Twelve runs whose gap depends on entropy alone, and whose training loss depends on neither."""
    orders = (7, 4, 9, 10, 3, 0, 2, 6, 1, 8, 11, 5)  # without a rank correlation
    runs = []
    for step, order in enumerate(orders):
        train = order / 12
        entropy = step / 12
        runs.append({"entropy": entropy, "train_loss": train, "test_loss": train + 1 + sign * entropy,
                     "train_accuracy": 0.9, "test_accuracy": 0.5 - 0.1 * sign * entropy})  # fmt: skip
    return {"runs": runs, **correlations(runs)}
