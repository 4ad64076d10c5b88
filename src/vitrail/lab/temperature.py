"""The limits of the softmax temperature: one-hot attention as it goes to zero, uniform attention as it grows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from vitrail.config import Count
from vitrail.lab.estimates import by_seed, curve, estimate
from vitrail.lab.experiment import PRINCIPLES, Check, Experiment, Results, Settings, Verdict, judge
from vitrail.layers.attention import Site, SoftmaxConfig
from vitrail.report import Picture, Section
from vitrail.report.charts_series import Series, series

_CLOSE = 0.01  # largest distance from a limit that counts as having reached it


@dataclass(frozen=True, kw_only=True)
class TemperatureSettings(Settings):
    """Attention over `tokens` random tokens at temperatures 10^-decades to 10^decades."""

    tokens: Count = 64
    dim: Count = 192
    num_heads: Count = 3
    decades: Count = 5


class Temperature(Experiment):
    """Measured on the softmax attention of the library, with random weights and tokens."""

    name = "temperature"
    title = "Temperature: from one-hot to uniform attention"
    claim = (
        "As the softmax temperature goes to zero, attention becomes one-hot; as it grows, attention becomes uniform."
    )
    source = f"{PRINCIPLES}; The Heart of the Transformer: Scaled Dot-Product Attention"
    prediction = (
        "At the smallest temperature the largest weight of a row is above 0.99 on average; at the largest, no weight "
        "differs from 1/N by more than 1 % of it; entropy grows with every step between."
    )
    falsifier = "Rows stay mixed at the smallest temperature or uneven at the largest, or entropy falls somewhere."
    quick = TemperatureSettings()
    full = TemperatureSettings(tokens=197, dim=768, num_heads=12, decades=6)
    seconds = 0.05

    def measure(self, settings: TemperatureSettings, *, seed: int, device: torch.device) -> Results:
        """Entropy, largest weight and distance from uniform by temperature; and the same with every token doubled."""
        temperatures = [10.0 ** (half / 2) for half in range(-2 * settings.decades, 2 * settings.decades + 1)]
        tokens = torch.randn(1, settings.tokens, settings.dim, device=device)
        doubled = torch.cat([tokens, tokens], dim=1)
        site = Site(dim=settings.dim, num_heads=settings.num_heads, grid=(settings.tokens, 1), num_prefix=0)
        weights = SoftmaxConfig().build(site).state_dict()
        found: dict[str, Any] = {"temperatures": temperatures}
        for name, given in {"single": tokens, "doubled": doubled}.items():
            rows = []
            for temperature in temperatures:
                layer = SoftmaxConfig(temperature=temperature).build(site)
                layer.load_state_dict(weights)
                with torch.no_grad():
                    rows.append(_statistics(layer.to(device).weights(given, (given.shape[1], 1)).double()))
            found[name] = {key: [row[key] for row in rows] for key in rows[0]}
        return found

    def figures(self, results: Sequence[Results]) -> Sequence[Section]:
        """Entropy by temperature, with and without doubled tokens."""
        temperatures = results[0]["temperatures"]
        shown = []
        for name, title in {"single": "different tokens", "doubled": "every token twice"}.items():
            means = curve(results, name, "entropy")
            points = list(zip(temperatures, (mean.value for mean in means), strict=True))
            shown.append(Series(title, points, [(mean.low, mean.high) for mean in means]))
        text = (
            "Entropy of a row of attention as a share of the largest possible, by temperature. Where two keys are "
            "equal, the limit of zero is a tie: attention is shared between them, and is not one-hot."
        )
        return (Picture("Entropy", series("Entropy", shown, x="temperature", y="entropy / log N", log_x=True), text),)

    def verdict(self, results: Sequence[Results]) -> Verdict:
        """Both limits and the way between."""
        cold = estimate(by_seed(results, "single", "largest", 0))
        hot = estimate(by_seed(results, "single", "from_uniform", -1))
        steps = estimate([_falls(result["single"]["entropy"]) for result in results])
        tied = estimate(by_seed(results, "doubled", "largest", 0))
        return judge(
            [
                Check(
                    text="at the lowest temperature, one weight has nearly all of a row", found=cold, least=1 - _CLOSE
                ),
                Check(text="at the highest, N times a weight differs little from 1", found=hot, most=_CLOSE),
                Check(text="entropy never falls from one temperature to the next", found=steps, most=1e-6),
                Check(
                    text="one weight has nearly all of a row even where two keys are equal",
                    found=tied,
                    least=1 - _CLOSE,
                    essential=False,
                ),
            ],
            note="The limit of zero is one-hot only where a single key fits best; equal keys share the attention",
        )

    def true_case(self) -> Sequence[Results]:
        """Logits 0 and 1 in rows of four: one-hot and uniform in closed form."""
        return [_closed_form(tie=False)]

    def false_case(self) -> Sequence[Results]:
        """Rows with two equal largest logits, which never become one-hot."""
        return [_closed_form(tie=True)]


def _statistics(weights: Tensor) -> Mapping[str, float]:
    """Means over the rows of attention ... N: entropy by its maximum, largest weight, distance from 1/N times N."""
    count = weights.shape[-1]
    entropy = torch.special.entr(weights).sum(dim=-1) / torch.log(torch.tensor(float(count)))
    return {
        "entropy": float(entropy.mean()),
        "largest": float(weights.amax(dim=-1).mean()),
        "from_uniform": float((count * weights - 1).abs().max()),
    }


def _falls(values: Sequence[float]) -> float:
    return max(before - after for before, after in pairwise(values))


def _closed_form(*, tie: bool) -> Results:
    temperatures = [10.0**power for power in range(-5, 6)]
    logits = torch.tensor([[1.0, 1.0 if tie else 0.0, 0.0, 0.0]], dtype=torch.float64)
    distinct = torch.tensor([[1.0, 0.5, 0.0, 0.0]], dtype=torch.float64)
    rows = [_statistics((logits / temperature).softmax(dim=-1)) for temperature in temperatures]
    other = [_statistics((distinct / temperature).softmax(dim=-1)) for temperature in temperatures]
    found = {key: [row[key] for row in rows] for key in rows[0]}
    return {
        "temperatures": temperatures,
        "single": found,
        "doubled": {key: [row[key] for row in other] for key in other[0]},
    }
