"""LeViT's attention between stages: read as the model runs it, unfolded to all patches, carried down exactly."""

import pytest
import torch
from support.registered import pictures, randomise, tiny

from vitrail.explain.attention.capture import capture
from vitrail.explain.attention.layer import attention_layers
from vitrail.explain.attention.subsampled import Subsampled
from vitrail.explain.methods.placement import Strides
from vitrail.explain.methods.propagation import Importance, receive
from vitrail.explain.methods.saliency import saliency
from vitrail.layers.attention import SubsampledAttention

GRIDS = [(4, 4), (5, 3), (1, 2)]


def halving(grid: tuple[int, int]) -> Subsampled:
    torch.manual_seed(0)
    inner = randomise(SubsampledAttention(8, 12, grid=grid, num_heads=2, head_dim=4)).eval()
    return Subsampled(inner).double()


@pytest.mark.parametrize("grid", GRIDS)
@torch.no_grad()
def test_weights_times_contents_is_what_the_layer_reads(grid: tuple[int, int]) -> None:
    layer = halving(grid)
    tokens = torch.randn(2, grid[0] * grid[1], 8, dtype=torch.float64)
    weights = layer.weights(tokens, grid)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1], dtype=torch.float64))
    mixed = (weights @ layer.contents(tokens, grid)).transpose(1, 2).flatten(2)  # B N Av
    read = layer.inner.projection(layer.readout(mixed))
    torch.testing.assert_close(read, layer(tokens, grid))
    some = torch.tensor([grid[0] * grid[1] - 1, 0])
    torch.testing.assert_close(layer.weights(tokens, grid, some), weights[:, :, some])


def test_the_patches_of_a_cell_share_one_query() -> None:
    queries = halving((3, 5)).query_of_patch((3, 5))
    assert queries.view(3, 5).tolist() == [
        [0, 0, 1, 1, 2],
        [0, 0, 1, 1, 2],
        [3, 3, 4, 4, 5],
    ]


@pytest.mark.parametrize("grid", GRIDS)
@torch.no_grad()
def test_carrying_importance_down_is_that_of_the_queries(grid: tuple[int, int]) -> None:
    layer = halving(grid)
    tokens = torch.randn(1, grid[0] * grid[1], 8, dtype=torch.float64)
    coarse = (-(-grid[0] // 2), -(-grid[1] // 2))
    held = torch.rand(1, coarse[0] * coarse[1], dtype=torch.float64)
    weights = layer.weights(tokens, grid).mean(dim=1)  # 1 N N
    first = torch.arange(grid[0] * grid[1]).view(grid)[::2, ::2].flatten()  # the patch that asks, of each cell
    expected = held @ weights[0, first]
    spread = Importance(held[:, :0], held, coarse, Strides()).on(0, grid)
    rows = torch.arange(grid[0] * grid[1])
    torch.testing.assert_close(receive(spread, iter([(rows, weights)])), expected)
    unit = receive(spread, iter([(rows, 3 * weights)]), normalise=True, residual=False)
    torch.testing.assert_close(unit, expected)


def test_all_of_levit_is_captured_between_stages_too() -> None:
    torch.manual_seed(0)
    model = tiny("levit_128s")
    images = pictures(model)
    layers = attention_layers(model)
    between = [layer for layer in layers if not layer.residual]
    assert len(between) == 2
    assert all("downsample" in layer.name and layer.hooked is model.get_submodule(layer.name) for layer in between)
    assert [layer.level for layer in layers] == sorted(layer.level for layer in layers)
    expected = model(images)
    with capture(model, gradients=True) as seen:
        logits = model(images)
        logits[:, 0].sum().backward()
    assert torch.equal(logits, expected)
    for layer in between:
        patches = seen.grid[layer.index][0] * seen.grid[layer.index][1]
        assert seen.tokens[layer.index].shape[1] == patches
        assert seen.attention[layer.index].shape == (2, layer.module.num_heads, patches, patches)
        assert seen.gradients[layer.index].shape == seen.attention[layer.index].shape


@pytest.mark.parametrize("method", ["relevance", "gradient_rollout"])
def test_importance_passes_where_every_gradient_is_negative(method: str) -> None:
    """No residual branch goes around attention between stages: what it attends to is what there is."""
    torch.manual_seed(0)
    model = tiny("levit_128s")
    images = pictures(model, 1)
    with capture(model, layers=[1], gradients=True) as seen:
        model(images)[:, 1].sum().backward()
    assert (seen.gradients[1] <= 0).all()
    found = saliency(model, images, method, target=1)
    assert found.min() >= 0
    assert found.std() > 0.01 * found.mean() > 0


def test_the_gradient_is_that_of_explicit_attention() -> None:
    """The slope of one weight, against a small step of it in the layer's own sum."""
    torch.manual_seed(0)
    model = tiny("levit_128s").double()
    images = pictures(model, 1, torch.float64)
    layer = next(one for one in attention_layers(model) if not one.residual)
    with capture(model, layers=[layer.index], gradients=True) as seen:
        model(images)[:, 0].sum().backward()
    weight, step = (0, 0, -1), 1e-5  # head, query 0, the last patch
    changed = []
    for sign in (1, -1):

        def move(_, inputs, sign=sign):
            mixed = inputs[0].clone()
            value = seen.values[layer.index][0, weight[0], weight[2]]  # v
            mixed[0, weight[1], weight[0] * len(value) : (weight[0] + 1) * len(value)] += sign * step * value
            return (mixed,)

        hook = layer.module.readout.register_forward_pre_hook(move)
        with torch.no_grad():
            changed.append(model(images)[0, 0])
        hook.remove()
    slope = (changed[0] - changed[1]).item() / (2 * step)
    assert seen.gradients[layer.index][0, weight[0], weight[1], weight[2]].item() == pytest.approx(slope, rel=1e-4)
