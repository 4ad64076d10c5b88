"""The cost of a ViT: the formula of the textbooks against exact counts, measured time and measured memory."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from vitrail.config import Count
from vitrail.lab.estimates import by_seed, estimate, exponent
from vitrail.lab.experiment import PRINCIPLES, Check, Experiment, Results, Settings, Verdict, judge, limit
from vitrail.lab.plots import by_name, chart, line
from vitrail.layers.attention import Attention, Site, SoftmaxConfig
from vitrail.models.backbone import Backbone
from vitrail.models.vit import ViTConfig
from vitrail.profiling import sketch
from vitrail.profiling.count import Node, blank_images, count
from vitrail.report import Section, Table
from vitrail.timing import interleaved, synchronised

_BASE = "vit_base_patch16"
_PARTS = {
    "patch": "patch embedding",
    "projections": "attention: q, k, v, output",
    "products": "attention: L x L products",
    "mlp": "MLP",
    "head": "head",
}
_KINDS = {"explicit": "explicit attention", "fused": "fused attention"}


@dataclass(frozen=True, kw_only=True)
class CostModelSettings(Settings):
    """Counts of named models; time and memory of one attention layer by its tokens, and time by its width."""

    models: tuple[str, ...] = ("vit_tiny_patch16", "vit_small_patch16", "vit_base_patch16", "vit_base_patch32")
    image_sizes: tuple[int, ...] = (224, 384, 512, 1024)
    tokens: tuple[int, ...] = (128, 256, 512, 1024)
    kept_tokens: tuple[int, ...] = (256, 512, 1024, 2048, 4096)
    dims: tuple[int, ...] = (96, 192, 384, 768)
    num_heads: Count = 3
    rounds: Count = 15


class CostModel(Experiment):
    """Counts are exact (`vitrail.profiling`), memory is that of the tensors that autograd really keeps."""

    name = "cost-model"
    title = "The cost model 4LD^2 + 2L^2D"
    claim = (
        "Attention over L tokens of width D takes 4LD^2 + 2L^2D multiply-accumulates; L^2 soon dominates the cost, and "
        "training needs memory that grows as L^2."
    )
    source = f"{PRINCIPLES}; Computational and Memory Complexity"
    prediction = (
        "The counts of all models follow the formula to a thousandth, explicit attention keeps memory that grows as "
        "L^2, time follows the multiply-accumulates, and the sum over the layers is the cost of the model."
    )
    falsifier = "A count that differs by more than a thousandth, or an exponent of kept memory below 1.8."
    quick = CostModelSettings()
    full = CostModelSettings(
        models=("vit_tiny_patch16", "vit_small_patch16", "vit_base_patch16", "vit_large_patch16", "vit_huge_patch14"),
        tokens=(256, 512, 1024, 2048, 4096),
        kept_tokens=(256, 512, 1024, 2048, 4096, 8192),
        dims=(192, 384, 768, 1536, 3072),
        rounds=40,
    )
    seconds = 3.0

    def measure(self, settings: CostModelSettings, *, seed: int, device: torch.device) -> Results:
        """Counts by model, shares by part and image size, time and memory of a layer."""
        counted = [_counted(sketch(name)) for name in settings.models]
        sizes = [_counted(sketch(_BASE, image_size=size))["shares"] for size in settings.image_sizes]
        dim, length = settings.dims[1], settings.tokens[1]
        memory = {
            kind: [_kept(*_layer(tokens, dim, settings.num_heads, kind, device)) for tokens in settings.kept_tokens]
            for kind in _KINDS
        }
        return {
            "models": list(settings.models),
            "attention": [found["attention"] for found in counted],
            "model": [found["model"] for found in counted],
            "image_sizes": list(settings.image_sizes),
            "shares": {part: [shares[part] for shares in sizes] for part in _PARTS},
            "tokens": list(settings.tokens),
            "kept_tokens": list(settings.kept_tokens),
            "dims": list(settings.dims),
            "memory": memory,
            "time": _timed(settings, device),
            "macs": {
                "tokens": [formula(tokens, dim) for tokens in settings.tokens],
                "dims": [formula(length, width) for width in settings.dims],
            },
        }

    def figures(self, results: Sequence[Results]) -> Sequence[Section]:
        """The counts, the shares by image size, and time and memory by tokens and width."""
        first = results[0]
        rows = [
            {"model": name, "attention / formula": attention, "model / formula": model}
            for name, attention, model in zip(first["models"], first["attention"], first["model"], strict=True)
        ]
        columns = dict.fromkeys(("model", "attention / formula", "model / formula"), "")
        shares = by_name(results, first["image_sizes"], _PARTS, "shares")
        text = "Counted multiply-accumulates of ViT-B/16 by part; the products are the term in L^2."
        kept = by_name(results, first["kept_tokens"], _KINDS, "memory")
        other = "Bytes that autograd keeps for the backward pass of one attention layer, measured."
        taken = by_name(results, first["tokens"], _KINDS, "time", "tokens")
        last = "Seconds (of the processor) of a forward pass of one attention layer, the best of several in turns."
        wide = [line("fused attention", first["dims"], results, "time", "dims")]
        return (
            Table("Counted, as a multiple of 4LD^2 + 2L^2D", columns, rows),  # type: ignore[arg-type]
            chart("Shares of the cost", shares, text, x="image size", y="share of MACs", log_x=True),
            chart("Memory", kept, other, x="tokens", y="bytes", log_x=True, log_y=True),
            chart("Time by tokens", taken, last, x="tokens", y="s", log_x=True, log_y=True),
            chart("Time by width", wide, last, x="width", y="s", log_x=True, log_y=True),
        )

    def verdict(self, results: Sequence[Results]) -> Verdict:
        """Counts and memory; then what the formula is taken to say of models, images, time and fused kernels."""
        tokens = results[0]["kept_tokens"]
        off = [max(abs(ratio - 1) for ratio in result["attention"]) for result in results]
        memory = {kind: [_top(tokens, result["memory"][kind]) for result in results] for kind in _KINDS}
        late = {name: estimate([_late(result, name) for result in results]) for name in ("tokens", "dims")}
        limits = [
            limit(
                "the layers cost what the formula says (whole model / formula, the largest of the models)",
                estimate([max(result["model"]) for result in results]),
                most=1.1,
            ),
            limit(
                "at the largest image, the term in L^2 is more than half of ViT-B/16",
                estimate(by_seed(results, "shares", "products", -1)),
                least=0.5,
            ),
            limit("fused attention keeps memory with an exponent near 2, too", estimate(memory["fused"]), least=1.8),
            limit(
                "explicit attention takes time by the formula in L (difference of exponents)",
                late["tokens"],
                least=-0.2,
                most=0.2,
            ),
            limit(
                "fused attention takes time by it in D (difference of exponents)",
                late["dims"],
                least=-0.2,
                most=0.2,
            ),
        ]
        return judge(
            [
                Check(text="counted attention is 4LD^2 + 2L^2D (largest error)", found=estimate(off), most=1e-3),
                Check(
                    text="explicit attention keeps memory with an exponent near 2 in L",
                    found=estimate(memory["explicit"]),
                    least=1.8,
                    most=2.1,
                ),
                *limits,
            ],
            note="The formula is that of attention alone: the MLP adds 8LD^2, so that L^2 dominates from L = 6D on",
        )

    def true_case(self) -> Sequence[Results]:
        """A machine that takes one second for a multiply-accumulate, and models of attention alone."""
        return [_case(attention=1.0, model=1.0, products=0.9, power=2.0)]

    def false_case(self) -> Sequence[Results]:
        """Linear attention: the counts of the library, and memory that grows as L."""
        counted = _counted(sketch(_BASE, attention="linear"))
        return [_case(attention=counted["attention"], model=counted["model"], products=0.0, power=1.0)]


def formula(tokens: int, dim: int) -> int:
    """The multiply-accumulates of one attention layer."""
    return 4 * tokens * dim**2 + 2 * tokens**2 * dim


def _top(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent between the last two points, where lower powers matter least."""
    return exponent(x[-2:], y[-2:])


def _late(result: Results, name: str) -> float:
    """The exponent of time less that of the formula, in tokens (explicit attention) or in the width (fused)."""
    taken = result["time"]["dims"] if name == "dims" else result["time"]["tokens"]["explicit"]
    return exponent(result[name], taken) - exponent(result[name], result["macs"][name])


def _counted(model: Backbone) -> Mapping[str, Any]:
    """The counts of a ViT: attention and the whole model by the formula, and the share of each part."""
    config = model.config
    assert isinstance(config, ViTConfig)  # noqa: S101
    grid = config.grid(config.image_size)
    tokens = grid[0] * grid[1] + config.class_token
    by_part = dict.fromkeys(_PARTS, 0)
    for node in _nodes(count(model, blank_images(model, None, 1))):
        by_part[_part(node.path)] += node.macs
    whole = sum(by_part.values())
    told = config.depth * formula(tokens, config.dim)
    return {
        "attention": (by_part["projections"] + by_part["products"]) / told,
        "model": whole / told,
        "shares": {part: macs / whole for part, macs in by_part.items()},
    }


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from _nodes(child)


def _part(path: str) -> str:
    if ".attention" in path:
        return "products" if path.endswith(".attention") else "projections"
    return "mlp" if ".mlp" in path else "head" if path.startswith("head") else "patch"


def _layer(tokens: int, dim: int, num_heads: int, kind: str, device: torch.device) -> tuple[Attention, Tensor]:
    """An attention layer, and random tokens 1 N D for it."""
    site = Site(dim=dim, num_heads=num_heads, grid=(tokens, 1))
    return SoftmaxConfig(fused=kind == "fused").build(site).to(device), torch.randn(1, tokens, dim, device=device)


def _kept(layer: Attention, tokens: Tensor) -> int:
    """The bytes that autograd keeps of one forward pass, without the weights; memory that is shared counts once."""
    sizes: dict[int, int] = {}
    weights = {parameter.untyped_storage().data_ptr() for parameter in layer.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        found = layer(tokens, (tokens.shape[1], 1))
    del found
    return sum(sizes.values())


def _timed(settings: CostModelSettings, device: torch.device) -> Mapping[str, Any]:
    """The best of several forward passes in turns: by tokens for both kinds, by width for the fused one."""
    dim, length, heads = settings.dims[1], settings.tokens[1], settings.num_heads
    runs: dict[object, Callable[[], object]] = {
        (kind, tokens): _pass(*_layer(tokens, dim, heads, kind, device), device)
        for kind in _KINDS
        for tokens in settings.tokens
    }
    wide: dict[object, Callable[[], object]] = {
        width: _pass(*_layer(length, width, heads, "fused", device), device) for width in settings.dims
    }
    clock = time.perf_counter if device.type == "cuda" else time.process_time  # what else runs does not count
    found = interleaved({repr(key): run for key, run in {**runs, **wide}.items()}, rounds=settings.rounds, clock=clock)
    best = {name: min(taken) for name, taken in found.items()}
    return {
        "tokens": {kind: [best[repr((kind, tokens))] for tokens in settings.tokens] for kind in _KINDS},
        "dims": [best[repr(width)] for width in settings.dims],
    }


def _pass(layer: Attention, tokens: Tensor, device: torch.device) -> Callable[[], object]:
    @torch.no_grad()
    def run() -> object:
        return layer(tokens, (tokens.shape[1], 1))

    return synchronised(run, device)


def _case(*, attention: float, model: float, products: float, power: float) -> Results:
    """Results where time is the formula, and memory a power of the number of tokens."""
    tokens, dims = [64, 128, 256], [32, 64, 128]
    macs = {"tokens": [formula(one, 64) for one in tokens], "dims": [formula(128, one) for one in dims]}
    kept = [float(one**power) for one in tokens]
    shares = {part: [0.0, 0.0] for part in _PARTS} | {"products": [products, products]}
    return {
        "models": ["one"],
        "attention": [attention],
        "model": [model],
        "image_sizes": [224, 384],
        "shares": shares,
        "tokens": tokens,
        "dims": dims,
        "kept_tokens": tokens,
        "memory": dict.fromkeys(_KINDS, kept),
        "time": {"tokens": dict.fromkeys(_KINDS, macs["tokens"]), "dims": macs["dims"]},
        "macs": macs,
    }
