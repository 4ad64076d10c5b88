"""What tokens hold, from layer to layer and from level to level."""

import torch
from support.registered import pictures, tiny
from torch import Tensor

from vitrail.explain.attention.capture import capture
from vitrail.explain.methods.placement import Strides
from vitrail.explain.methods.propagation import (
    Importance,
    capture_attention,
    capture_gradients,
    fuse_heads,
    propagate,
    receive,
)
from vitrail.explain.methods.rollout import fused
from vitrail.explain.methods.target import Target
from vitrail.models.backbone import Backbone


def read(model: Backbone) -> Importance:
    """The tokens that the head of a model reads."""
    return capture_attention(model, pictures(model), None)[1]


def test_the_head_reads_the_class_token_the_mean_or_both() -> None:
    torch.manual_seed(0)
    torch.testing.assert_close(read(tiny()).prefix, torch.ones(2, 1))
    assert not read(tiny()).patches.any()
    mean = read(tiny(pool="mean"))
    assert not mean.prefix.any()
    torch.testing.assert_close(mean.patches, torch.full((2, 6), 1 / 6))
    torch.testing.assert_close(read(tiny("deit_tiny_distilled_patch16")).prefix, torch.full((2, 2), 0.5))
    torch.testing.assert_close(read(tiny(registers=3)).prefix, torch.tensor([[1.0, 0, 0, 0]]).expand(2, -1))
    torch.testing.assert_close(read(tiny(pool="class_mean")).patches, torch.full((2, 6), 1 / 7))
    torch.testing.assert_close(read(tiny("swin_tiny_patch4_window7")).patches.sum(dim=1), torch.ones(2))


def test_explaining_a_logit_keeps_gradients_of_parameters() -> None:
    torch.manual_seed(0)
    model = tiny()
    _, importance = capture_gradients(model, pictures(model), Target(torch.tensor([0, 1])), None)
    torch.testing.assert_close(importance.prefix, torch.ones(2, 1))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_prefix_tokens_go_along_or_stay_behind() -> None:
    importance = Importance(torch.tensor([[0.5, 0.25]]), torch.tensor([[0.25]]), (1, 1), Strides())
    torch.testing.assert_close(importance.on(2, (1, 2)), torch.tensor([[0.5, 0.25, 0.125, 0.125]]))
    torch.testing.assert_close(importance.on(0, (1, 2)), torch.tensor([[0.125, 0.125]]))
    torch.testing.assert_close(importance.on(3, (1, 1)), torch.tensor([[0.5, 0.25, 0.0, 0.25]]))
    alone = Importance(torch.ones(1, 1), torch.zeros(1, 4), (2, 2), Strides())
    torch.testing.assert_close(alone.on(0, (2, 2)), torch.full((1, 4), 0.25))  # of a token that is not there: all alike


def test_received_is_a_product_and_with_the_token_itself_it_keeps_the_sum() -> None:
    importance, matrix = torch.rand(2, 5), torch.rand(2, 5, 5)
    parts = [(torch.arange(3), matrix[:, :3]), (torch.arange(3, 5), matrix[:, 3:])]
    torch.testing.assert_close(receive(importance, iter(parts)), torch.einsum("br,brn->bn", importance, matrix))
    whole = matrix + torch.eye(5)
    whole = whole / whole.sum(dim=2, keepdim=True)
    found = receive(importance, iter(parts), normalise=True)
    torch.testing.assert_close(found, torch.einsum("br,brn->bn", importance, whole))
    torch.testing.assert_close(found.sum(dim=1), importance.sum(dim=1))


def looked_at(model: Backbone, layer: int, place: int) -> Tensor:
    """Where one patch of a grid looks in one layer: h w."""
    images = pictures(model, 1)
    with torch.no_grad(), capture(model, layers=[layer]) as captured:
        model(images)
    grid = captured.grid[layer]
    importance = torch.zeros(1, grid[0] * grid[1])
    importance[0, place] = 1
    found = receive(importance, fuse_heads(captured, layer, lambda chunk: fused(chunk.attention, "mean")))
    return found.view(grid)


def test_a_window_shows_no_weight_outside_itself() -> None:
    torch.manual_seed(0)
    windows = {"attention": {"kind": "window", "size": 3}, "class_token": False, "pool": "mean", "position": "none"}
    model = tiny(image_size=(48, 72), **windows)  # a grid of 6 x 9
    first = looked_at(model, 0, 1 * 9 + 4)
    assert (first[:3, 3:6] > 0).all()
    first[:3, 3:6] = 0
    assert not first.any()
    shifted = looked_at(model, 1, 1 * 9 + 4)  # by one: windows begin at rows 1, 4 and columns 1, 4, 7
    assert (shifted[1:4, 4:7] > 0).all()
    shifted[1:4, 4:7] = 0
    assert not shifted.any()


def test_relevance_goes_from_level_to_level() -> None:
    """Each layer of a PVT hands down all that it gets, on its own grid."""
    torch.manual_seed(0)
    model = tiny("pvt_v2_b0")
    captured, importance = capture_attention(model, pictures(model), None)
    grids = []

    def step(layer: int, tokens: Tensor) -> Tensor:
        grids.append(captured.grid[layer])
        chunks = fuse_heads(captured, layer, lambda chunk: fused(chunk.attention, "mean"))
        return receive(tokens, chunks, normalise=True)

    found = propagate(captured, importance, step)
    levels = model.config.grids(model.config.image_size)
    assert grids == [levels[3], levels[2], levels[2], levels[1], levels[0]]
    assert found.grid == levels[0]
    torch.testing.assert_close(found.patches.sum(dim=1), torch.ones(2))
