"""What tokens hold, from layer to layer and from level to level."""

import torch
from registered import pictures, tiny
from torch import Tensor

from vitrail.explain.capture import capture
from vitrail.explain.placement import Places
from vitrail.explain.propagation import Held, carried, differentiated, fused, received, watched
from vitrail.explain.rollout import joined
from vitrail.models.backbone import Backbone


def read(model: Backbone) -> Held:
    """The tokens that the head of a model reads."""
    return watched(model, pictures(model), None)[1]


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


def test_a_logit_tells_the_same_and_parameters_keep_their_gradients() -> None:
    torch.manual_seed(0)
    model = tiny()
    _, held = differentiated(model, pictures(model), torch.tensor([0, 1]), None)
    torch.testing.assert_close(held.prefix, torch.ones(2, 1))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_prefix_tokens_go_along_or_stay_behind() -> None:
    held = Held(torch.tensor([[0.5, 0.25]]), torch.tensor([[0.25]]), (1, 1), Places())
    torch.testing.assert_close(held.on(2, (1, 2)), torch.tensor([[0.5, 0.25, 0.125, 0.125]]))
    torch.testing.assert_close(held.on(0, (1, 2)), torch.tensor([[0.125, 0.125]]))
    torch.testing.assert_close(held.on(3, (1, 1)), torch.tensor([[0.5, 0.25, 0.0, 0.25]]))
    alone = Held(torch.ones(1, 1), torch.zeros(1, 4), (2, 2), Places())
    torch.testing.assert_close(alone.on(0, (2, 2)), torch.full((1, 4), 0.25))  # of a token that is not there: all alike


def test_received_is_a_product_and_with_the_token_itself_it_keeps_the_sum() -> None:
    held, matrix = torch.rand(2, 5), torch.rand(2, 5, 5)
    parts = [(torch.arange(3), matrix[:, :3]), (torch.arange(3, 5), matrix[:, 3:])]
    torch.testing.assert_close(received(held, iter(parts)), torch.einsum("br,brn->bn", held, matrix))
    whole = matrix + torch.eye(5)
    whole = whole / whole.sum(dim=2, keepdim=True)
    found = received(held, iter(parts), normalise=True)
    torch.testing.assert_close(found, torch.einsum("br,brn->bn", held, whole))
    torch.testing.assert_close(found.sum(dim=1), held.sum(dim=1))


def looked_at(model: Backbone, layer: int, place: int) -> Tensor:
    """Where one patch of a grid looks in one layer: h w."""
    images = pictures(model, 1)
    with torch.no_grad(), capture(model, layers=[layer]) as seen:
        model(images)
    grid = seen.grid[layer]
    held = torch.zeros(1, grid[0] * grid[1])
    held[0, place] = 1
    found = received(held, fused(seen, layer, lambda chunk: joined(chunk.attention, "mean")))
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
    seen, held = watched(model, pictures(model), None)
    grids = []

    def step(layer: int, tokens: Tensor) -> Tensor:
        grids.append(seen.grid[layer])
        chunks = fused(seen, layer, lambda chunk: joined(chunk.attention, "mean"))
        return received(tokens, chunks, normalise=True)

    found = carried(seen, held, step)
    levels = model.config.grids(model.config.image_size)
    assert grids == [levels[3], levels[2], levels[2], levels[1], levels[0]]
    assert found.grid == levels[0]
    torch.testing.assert_close(found.patches.sum(dim=1), torch.ones(2))
