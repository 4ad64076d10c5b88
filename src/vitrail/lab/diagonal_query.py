"""A query for the diagonal of a 2 x 2 grid: what attention can read from one-hot position codes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.config import Count
from vitrail.lab.estimates import by_seed, estimate
from vitrail.lab.experiment import PRINCIPLES, Check, Experiment, Results, Settings, Verdict, judge
from vitrail.lab.plots import chart, line
from vitrail.report import Section

QUERY = (1.0, 0.0, 0.0, 1.0)  # positions 0 and 3: the diagonal


@dataclass(frozen=True, kw_only=True)
class DiagonalQuerySettings(Settings):
    """Random contents of four patches, and queries 2^-halvings to 2^doublings times as long as the source's."""

    pictures: Count = 4000
    doublings: Count = 5
    halvings: Count = 2


class DiagonalQuery(Experiment):
    """Keys are position codes, values are contents; the query is that of the source, at several lengths."""

    name = "diagonal-query"
    title = "Position codes: a query for the diagonal of a 2 x 2 grid"
    claim = "With one-hot position codes as keys, the query [1, 0, 0, 1] makes attention focus on the diagonal patches."
    source = f"{PRINCIPLES}; The Heart of the Transformer: Scaled Dot-Product Attention (minimal experiment)"
    prediction = (
        "The diagonal gets more than half of the attention; whether the diagonal is brighter than the rest can be read "
        "from the output with codes and not without; the focus as written is nearly complete."
    )
    falsifier = "The diagonal gets half or less, or codes do not help to tell the two arrangements apart."
    quick = DiagonalQuerySettings()
    full = DiagonalQuerySettings(pictures=100_000)
    seconds = 0.01

    def measure(self, settings: DiagonalQuerySettings, *, seed: int, device: torch.device) -> Results:
        """The attention on the diagonal by the length of the query, and how often the output tells the arrangement."""
        contents = torch.randn(settings.pictures, 4, device=device)
        lengths = [2.0**power for power in range(-settings.halvings, settings.doublings + 1)]
        codes = torch.eye(4, device=device)
        shares = [
            float(_attention(length * torch.tensor(QUERY, device=device), codes)[[0, 3]].sum()) for length in lengths
        ]
        return {"lengths": lengths, "shares": shares, **_told(contents, codes)}

    def figures(self, results: Sequence[Results]) -> Sequence[Section]:
        """The share of the diagonal by the length of the query."""
        lines = [line("diagonal", results[0]["lengths"], results, "shares")]
        text = "Attention on the two diagonal patches by the length of the query; 1 is the query of the source."
        return (chart("Attention on the diagonal", lines, text, x="times the query", y="share", log_x=True),)

    def verdict(self, results: Sequence[Results]) -> Verdict:
        """More than half, readable with codes alone, and nearly all."""
        at = results[0]["lengths"].index(1.0)
        share = estimate(by_seed(results, "shares", at))
        return judge(
            [
                Check(
                    text="more than half of the attention is on the diagonal",
                    found=share,
                    least=0.5 + 1e-6,
                    unit="share",
                ),
                Check(
                    text="with codes, the output tells the arrangement",
                    found=estimate(by_seed(results, "with_codes")),
                    least=0.95,
                    unit="share",
                ),
                Check(
                    text="without codes, it does not",
                    found=estimate(by_seed(results, "without_codes")),
                    most=0.55,
                    unit="share",
                ),
                Check(
                    text="nearly all of the attention is on the diagonal, with the query as written",
                    found=share,
                    least=0.95,
                    unit="share",
                    essential=False,
                ),
            ],
            note="Scaled by the root of d_k = 4, the logits are 0.5 and 0; a query eight times as long has the focus",
        )

    def true_case(self) -> Sequence[Results]:
        """A query so long that the softmax is a choice."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return [{"lengths": [1.0], "shares": [1.0], **_told(torch.randn(2000, 4), 50 * torch.eye(4))}]

    def false_case(self) -> Sequence[Results]:
        """Codes that are equal at all positions."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return [{"lengths": [1.0], "shares": [0.5], **_told(torch.randn(2000, 4), torch.ones(4, 4))}]


def _attention(query: Tensor, keys: Tensor) -> Tensor:
    """The weights of one query over keys N d: N."""
    return (keys @ query / math.sqrt(keys.shape[1])).softmax(dim=0)


def _told(contents: Tensor, codes: Tensor) -> dict[str, float]:
    """How often (output - mean) has the sign of (diagonal - rest), for contents B 4; without codes, keys are contents.

    Without codes the query is a content, too, so that the output cannot depend on the order of the patches.
    """
    query = torch.tensor(QUERY, device=contents.device)
    truth = contents[:, [0, 3]].sum(dim=1) > contents[:, [1, 2]].sum(dim=1)
    mean = contents.mean(dim=1)
    with_codes = contents @ _attention(query, codes)
    without = (contents * contents.softmax(dim=1)).sum(dim=1)
    # A deviation below rounding says nothing; it counts as the answer "no".
    told = {"with_codes": with_codes, "without_codes": without}
    return {name: float(((output - mean > 1e-5) == truth).float().mean()) for name, output in told.items()}
