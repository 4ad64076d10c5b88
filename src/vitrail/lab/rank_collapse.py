"""What stacked attention does to its tokens without skip connections: their differences die out (arXiv:2103.03404)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.config import Count
from vitrail.lab.estimates import by_seed, estimate
from vitrail.lab.experiment import FOUNDATIONS, PRINCIPLES, Check, Experiment, Results, Settings, Verdict, judge
from vitrail.lab.plots import by_name, chart
from vitrail.lab.subjects import natural_noise, packaged_vit, random_vit
from vitrail.layers.attention import Attention
from vitrail.models.vit import ViT
from vitrail.report import Group, Section

_FORMS = {"attention": "attention alone", "mlp": "with MLP", "skip": "with skip", "both": "with both"}
_DISTINCT = 0.1  # smallest share of differences between tokens that counts as distinct


@dataclass(frozen=True, kw_only=True)
class RankCollapseSettings(Settings):
    """A ViT with random weights, besides the packaged model."""

    dim: Count = 192
    depth: Count = 12
    num_heads: Count = 3
    images: Count = 4


class RankCollapse(Experiment):
    """The blocks of the library, run with and without their skip connections and MLPs."""

    name = "rank-collapse"
    title = "Stacked attention without skip connections: rank collapse"
    claim = (
        "Without residual connections, the product of the attention matrices of all layers is a receptive field of "
        "each token, reconfigured by the input."
    )
    source = (
        f"{PRINCIPLES}; Global vs. Local Information Processing (attention rollout). The spectrum: {FOUNDATIONS}; "
        "Attention Pattern Analysis"
    )
    prediction = (
        "The rows of the product of twelve layers differ from token to token: their differences are at least a tenth "
        "of its norm, and so are those of the tokens; and another input gives another product."
    )
    falsifier = "The product has nearly equal rows (rank one): every token sees the same mixture."
    quick = RankCollapseSettings()
    full = RankCollapseSettings(dim=768, depth=24, num_heads=12, images=16)
    seconds = 1.0

    def measure(self, settings: RankCollapseSettings, *, seed: int, device: torch.device) -> Results:
        """Differences of tokens by layer in four forms, and the products of attention matrices."""
        model = random_vit(
            dim=settings.dim, depth=settings.depth, num_heads=settings.num_heads, image_size=32, patch=4
        ).to(device)
        random = _look(model, natural_noise(settings.images, 32).to(device))
        return {"random": random, "trained": _look(*packaged_vit(device))}

    def figures(self, results: Sequence[Results]) -> Sequence[Section]:
        """Differences by layer for each form, and those of the rows of the product."""
        charts: list[Section] = []
        for name, title in {"random": "random weights", "trained": "packaged model"}.items():
            layers = [float(index) for index in range(len(results[0][name]["forms"]["skip"]))]
            text = f"Norm of the tokens less their mean, as a share of their norm, after each layer: {title}."
            lines = by_name(results, layers, _FORMS, name, "forms")
            charts.append(chart(f"Differences of tokens, {title}", lines, text, x="layer", y="share", log_y=True))
            products = {"plain": "product of attention", "skipped": "of (attention + identity) / 2"}
            lines = by_name(results, layers[1:], products, name, "products")
            text = f"The same share for the rows of the product of all matrices up to a layer: {title}."
            charts.append(chart(f"Differences of rows, {title}", lines, text, x="layer", y="share", log_y=True))
        return (Group("Differences by layer", charts, columns=2),)

    def verdict(self, results: Sequence[Results]) -> Verdict:
        """The product without skips, the tokens, and the spectrum; then the same in the trained model."""

        def last(name: str, *path: str) -> Any:
            return estimate(by_seed(results, name, *path, -1))

        checks = [
            Check(
                text="without skips, the rows of the product over all layers differ",
                found=last("random", "products", "plain"),
                least=_DISTINCT,
            ),
            Check(
                text="without skips and MLPs, the tokens after the last layer differ",
                found=last("random", "forms", "attention"),
                least=_DISTINCT,
            ),
            Check(
                text="another input gives another product (relative difference)",
                found=estimate(by_seed(results, "random", "reconfigured")),
                least=_DISTINCT,
            ),
            Check(
                text="the largest eigenvalue of an attention matrix is 1 (error)",
                found=estimate(by_seed(results, "random", "eigenvalue_error")),
                most=1e-4,
            ),
            Check(
                text="its eigenvalues are real, so that they can be put in an order (share of complex ones)",
                found=estimate(by_seed(results, "random", "complex")),
                most=0.0,
                unit="share",
                essential=False,
            ),
            Check(
                text="in the trained model, the rows of the product differ",
                found=last("trained", "products", "plain"),
                least=_DISTINCT,
                essential=False,
            ),
            Check(
                text="with skips and MLPs, as in every ViT, the tokens differ",
                found=last("random", "forms", "both"),
                least=_DISTINCT,
                essential=False,
            ),
        ]
        note = "Skip connections keep tokens apart; a rollout without them says nothing of single tokens"
        return judge(checks, note=note)

    def true_case(self) -> Sequence[Results]:
        """Attention that leaves the tokens of one input, and swaps neighbours in another."""
        swap = torch.eye(16).unflatten(0, (8, 2)).flip(1).flatten(0, 1)
        return [_case([torch.eye(16)[None], swap[None]])]

    def false_case(self) -> Sequence[Results]:
        """Uniform attention: one layer makes all tokens equal."""
        return [_case([torch.full((1, 16, 16), 1 / 16)] * 2)]


def distinct(rows: Tensor) -> float:
    """The norm of rows ... N D less their mean row, as a share of their norm; the mean over the first axes."""
    rows = rows.double()
    apart = torch.linalg.matrix_norm(rows - rows.mean(dim=-2, keepdim=True))
    return float((apart / torch.linalg.matrix_norm(rows)).mean())


@torch.no_grad()
def _look(model: ViT, images: Tensor) -> Mapping[str, Any]:
    """Differences by layer in the four forms; products and spectrum of the matrices of attention of the whole model."""
    tokens, grid = model.embed(images)
    forms: dict[str, list[float]] = {}
    matrices: list[Tensor] = []
    for form in _FORMS:
        stream, shares = tokens, [distinct(tokens)]
        for block in model.blocks:
            attention, norm1, norm2, mlp = (
                block.get_submodule(name) for name in ("attention", "norm1", "norm2", "mlp")
            )
            given = norm1(stream)
            if isinstance(attention, Attention) and form == "both":
                matrices.append(attention.weights(given, grid).double().mean(dim=1))  # B N N, the mean over heads
            mixed = attention(given, grid)
            stream = stream + mixed if form in {"skip", "both"} else mixed
            if form in {"mlp", "both"}:
                stream = _fed(mlp, norm2, stream, grid, skip=form == "both")
            shares.append(distinct(stream))
        forms[form] = shares
    return {"forms": forms, **_products(matrices), **_spectrum(matrices)}


def _fed(mlp: nn.Module, norm: nn.Module, stream: Tensor, grid: tuple[int, int], *, skip: bool) -> Tensor:
    fed: Tensor = mlp(norm(stream), grid)
    return stream + fed if skip else fed


def _products(matrices: Sequence[Tensor]) -> dict[str, Any]:
    """Differences of the rows of products of matrices B N N by layer, plain and with the identity of skips.

    `reconfigured` is the distance of the products of the first two inputs, as a share of their mean norm.
    """
    eye = torch.eye(matrices[0].shape[-1], dtype=torch.float64, device=matrices[0].device)
    plain = skipped = eye.expand_as(matrices[0])
    found: dict[str, list[float]] = {"plain": [], "skipped": []}
    for matrix in matrices:
        plain, skipped = matrix @ plain, (matrix + eye) / 2 @ skipped
        found["plain"].append(distinct(plain))
        found["skipped"].append(distinct(skipped))
    first, second = plain[0], plain[-1]
    norm = (torch.linalg.matrix_norm(first) + torch.linalg.matrix_norm(second)) / 2
    return {"products": found, "reconfigured": float(torch.linalg.matrix_norm(first - second) / norm)}


def _spectrum(matrices: Sequence[Tensor]) -> dict[str, float]:
    """Of all matrices: the largest error of the first eigenvalue, the mean modulus of the second, the complex share."""
    values = torch.linalg.eigvals(torch.cat(list(matrices)).cpu())  # M N
    moduli = values.abs().sort(dim=-1, descending=True).values
    return {
        "eigenvalue_error": float((moduli[:, 0] - 1).abs().max()),
        "second": float(moduli[:, 1].mean()),
        "complex": float((values.imag.abs() > 1e-9).double().mean()),
    }


def _case(matrices: Sequence[Tensor]) -> Results:
    """Eleven layers of the same matrix N N for each of two inputs; tokens 2 N D are mixed by them and nothing else."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        start = torch.randn(2, 16, 8).double()
    layers = [torch.cat(list(matrices)).double()] * 11
    shares, tokens = [distinct(start)], start
    for layer in layers:
        tokens = layer @ tokens
        shares.append(distinct(tokens))
    found = {"forms": dict.fromkeys(_FORMS, shares), **_products(layers), **_spectrum(layers[:1])}
    return {"random": found, "trained": found}
