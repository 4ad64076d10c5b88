"""The contract of all attention layers whose queries and keys come from different inputs."""

import copy
import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from support.deformable_loops import read_by_hand
from support.registered import randomise
from support.whole_graph import compiled_whole
from torch import Tensor, nn

from vitrail.layers import attention
from vitrail.layers.attention import CrossAttention, MultiScaleDeformableAttention

BATCH, QUERIES, DIM = 2, 4, 16
GRIDS = [(3, 4), (2, 2)]
TOKENS = sum(rows * columns for rows, columns in GRIDS)


class Case(NamedTuple):
    """A layer, what its queries read beside padding, and the same in loops for one image."""

    make: Callable[[], nn.Module]
    source: Callable[[], tuple[Any, ...]]  # tensors have the batch first; what is none is the same for all
    by_hand: Callable[..., Tensor]  # layer, queries Q D, the source of one image, its padding -> Q D


def cross_by_hand(layer: CrossAttention, queries: Tensor, context: Tensor, padding: list[bool]) -> Tensor:
    """Every query and every token of the context, head by head."""
    out, width = torch.zeros_like(queries), queries.shape[1] // layer.num_heads
    asked, (keys, values) = layer.q(queries), layer.kv(context).chunk(2, dim=1)
    for head in range(layer.num_heads):
        own = slice(head * width, (head + 1) * width)
        for m in range(len(queries)):
            seen = [n for n in range(len(context)) if not padding[n]]
            powers = [math.exp(float(asked[m, own] @ keys[n, own]) / math.sqrt(width)) for n in seen]
            out[m, own] = sum(power / sum(powers) * values[n, own] for power, n in zip(powers, seen, strict=True))
    return layer.projection(out)


def multiscale_by_hand(
    layer: MultiScaleDeformableAttention,
    queries: Tensor,
    references: Tensor,
    tokens: Tensor,
    grids: list[tuple[int, int]],
    padding: list[bool],
) -> Tensor:
    """Loops over queries, heads, levels and points: the interpolation of the four pixels around each point."""
    out, width = torch.zeros_like(queries), queries.shape[1] // layer.num_heads
    values = layer.value(tokens) * (~torch.tensor(padding)[:, None])
    maps = [part.T.unflatten(1, grid) for part, grid in zip(values.split([12, 4]), grids, strict=True)]
    for m, query in enumerate(queries):
        moves = layer.offsets(query).view(layer.num_heads, layer.levels, layer.points, 2).tolist()
        logits = layer.attention(query).view(layer.num_heads, -1)
        for head in range(layer.num_heads):
            own, share = slice(head * width, (head + 1) * width), logits[head].softmax(dim=0).tolist()
            for level, (rows, columns) in enumerate(grids):
                x, y = references[m, level].tolist()
                for point in range(layer.points):
                    dx, dy = moves[head][level][point]
                    # A reference of 0 is the edge of the map, half a pixel before the middle of the first.
                    found = read_by_hand(maps[level][own], y * rows + dy - 0.5, x * columns + dx - 0.5)
                    out[m, own] += share[level * layer.points + point] * found
    return layer.projection(out)


CASES = {
    "cross": Case(
        lambda: CrossAttention(DIM, num_heads=2, context_dim=24),
        lambda: (torch.randn(BATCH, TOKENS, 24),),
        cross_by_hand,
    ),
    "multiscale": Case(
        lambda: MultiScaleDeformableAttention(DIM, 2, levels=2, points=3),
        lambda: (torch.rand(BATCH, QUERIES, 2, 2), torch.randn(BATCH, TOKENS, DIM), GRIDS),
        multiscale_by_hand,
    ),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
padded_or_not = pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])


def drawn(case: Case, *, padded: bool = False, double: bool = False) -> tuple[nn.Module, tuple[Any, ...]]:
    """A layer with random weights, and queries, source and padding for it."""
    layer = randomise(case.make()).eval()
    inputs = torch.randn(BATCH, QUERIES, DIM), *case.source()
    padding = torch.zeros(BATCH, TOKENS).bool()
    padding[0, 2:5] = True
    if double:
        layer, inputs = layer.double(), tuple(x.double() if isinstance(x, Tensor) else x for x in inputs)
    return layer, (*inputs, padding if padded else None)


def test_every_such_attention_has_a_case():
    """Those that are found by themselves: layers of the package with queries and padding."""
    found = set()
    for info in pkgutil.iter_modules(attention.__path__):
        module = importlib.import_module(f"{attention.__name__}.{info.name}")
        for layer in vars(module).values():
            if inspect.isclass(layer) and issubclass(layer, nn.Module) and "forward" in vars(layer):
                found |= (
                    {layer} if {"queries", "padding"} <= set(inspect.signature(layer.forward).parameters) else set()
                )
    assert found == {type(case.make()) for case in CASES.values()}


@every_case
@padded_or_not
@torch.no_grad()
def test_is_its_formula_in_loops(case, padded):
    layer, (queries, *source, padding) = drawn(case, padded=padded, double=True)
    hidden = torch.zeros(BATCH, TOKENS).bool() if padding is None else padding
    expected = [
        case.by_hand(layer, queries[n], *(x[n] if isinstance(x, Tensor) else x for x in source), hidden[n].tolist())
        for n in range(BATCH)
    ]
    torch.testing.assert_close(layer(queries, *source, padding), torch.stack(expected), atol=1e-12, rtol=1e-12)


@every_case
@padded_or_not
@torch.no_grad()
def test_weights_are_shares_and_rows_select(case, padded):
    layer, inputs = drawn(case, padded=padded, double=True)
    weights = layer.weights(*inputs)
    assert weights.shape == (BATCH, layer.num_heads, QUERIES, TOKENS)
    assert (weights >= 0).all()
    assert (weights.sum(dim=-1) <= 1 + 1e-12).all()
    assert not padded or not weights[0, ..., 2:5].any()
    rows = torch.tensor([2, 0])
    torch.testing.assert_close(layer.weights(*inputs, rows=rows), weights[:, :, rows])


@every_case
@padded_or_not
@torch.no_grad()
def test_weights_times_contents_is_what_is_read(case, padded):
    layer, inputs = drawn(case, padded=padded, double=True)
    mixed = (layer.weights(*inputs) @ layer.contents(*inputs)).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer(*inputs), layer.projection(mixed), atol=1e-12, rtol=1e-12)


@every_case
@torch.no_grad()
def test_queries_and_images_stay_apart(case):
    """A subset of queries and images gives the same rows."""
    layer, (queries, *source, padding) = drawn(case, padded=True, double=True)
    whole, some = layer(queries, *source, padding), slice(1, 3)
    of_one = [x[1:] if isinstance(x, Tensor) else x for x in source]
    for_some = [x[:, some] if isinstance(x, Tensor) and x.ndim == 4 else x for x in of_one]  # references
    torch.testing.assert_close(layer(queries[1:, some], *for_some, padding[1:]), whole[1:, some])


@every_case
@torch.no_grad()
def test_padding_has_no_effect(case):
    layer, (queries, *source, padding) = drawn(case, padded=True, double=True)
    louder = [
        x.masked_fill(padding[..., None], 9.0) if isinstance(x, Tensor) and x.shape[1] == TOKENS else x for x in source
    ]
    assert torch.equal(layer(queries, *louder, padding), layer(queries, *source, padding))
    assert not torch.allclose(layer(queries, *louder, None), layer(queries, *source, None))


@every_case
def test_gradients_reach_every_parameter_and_input(case):
    layer, inputs = drawn(case)
    read = {str(n): x.requires_grad_() for n, x in enumerate(inputs) if isinstance(x, Tensor)}
    layer.train()(*inputs).square().sum().backward()
    gradients = {name: part.grad for name, part in (read | dict(layer.named_parameters())).items()}
    assert not [name for name, gradient in gradients.items() if gradient is None or not gradient.abs().max() > 0]


@every_case
@pytest.mark.parametrize("mode", ["cast", "autocast"])
@torch.no_grad()
def test_bfloat16_is_near_float32(case, mode):
    layer, inputs = drawn(case, padded=True)
    expected = layer(*inputs)
    if mode == "cast":  # places stay exact: in bfloat16 a reference would be another
        low = [x.bfloat16() if isinstance(x, Tensor) and x.ndim == 3 else x for x in inputs]
        found = copy.deepcopy(layer).bfloat16()(*low)
    else:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = layer(*inputs)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, atol=0.1 * expected.abs().max().item(), rtol=0.1)


@every_case
@torch.no_grad()
def test_state_dict_keeps_it(case):
    (layer, inputs), other = drawn(case), randomise(case.make()).eval()
    assert not torch.equal(other(*inputs), layer(*inputs))
    other.load_state_dict(layer.state_dict(), strict=True)
    assert torch.equal(other(*inputs), layer(*inputs))


@every_case
@torch.no_grad()
def test_compiles_whole(case):
    layer, inputs = drawn(case, padded=True)
    compiled = compiled_whole(layer)
    torch.testing.assert_close(compiled(*inputs), layer(*inputs))


@every_case
@torch.no_grad()
def test_exports_with_any_batch(case):
    layer, inputs = drawn(case, padded=True)
    batch = torch.export.Dim("batch")
    shapes = tuple({0: batch} if isinstance(x, Tensor) else [(None, None)] * len(x) for x in inputs)
    program = torch.export.export(layer, inputs, dynamic_shapes=shapes, strict=False).module()
    more = [torch.cat([x, x[:1]]) if isinstance(x, Tensor) else x for x in inputs]
    torch.testing.assert_close(program(*more), layer(*more))
