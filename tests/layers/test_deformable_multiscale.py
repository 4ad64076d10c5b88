"""Multi-scale deformable attention against Hugging Face's, the paper's initialisation, and single points by hand."""

import pytest
import support.peers  # noqa: F401  (makes transformers loadable)
import torch
from support.registered import randomise
from torch import nn
from transformers import DeformableDetrConfig
from transformers.models.deformable_detr.modeling_deformable_detr import DeformableDetrMultiscaleDeformableAttention

from vitrail.errors import ConfigError, InputError
from vitrail.layers.attention import MultiScaleDeformableAttention

GRIDS = [(6, 4), (3, 2), (2, 1)]
TOKENS = sum(rows * columns for rows, columns in GRIDS)
NAMES = {"offsets": "sampling_offsets", "attention": "attention_weights", "value": "value_proj"}


def layer_of(**changes):
    return MultiScaleDeformableAttention(**{"dim": 32, "num_heads": 4, "levels": 3, "points": 2} | changes)


def inputs(numbers=2, queries=5, dtype=torch.float64):
    references = torch.rand(2, queries, 3, numbers, dtype=dtype)
    return torch.randn(2, queries, 32, dtype=dtype), references, torch.randn(2, TOKENS, 32, dtype=dtype)


def peer_of(layer):
    config = DeformableDetrConfig(d_model=32, num_feature_levels=3)
    peer = DeformableDetrMultiscaleDeformableAttention(config, num_heads=4, n_points=2).double()
    weights = {}
    for name, tensor in layer.state_dict().items():
        part, _, kind = name.partition(".")
        weights[f"{NAMES.get(part, 'output_proj')}.{kind}"] = tensor
    peer.load_state_dict(weights, strict=True)
    return peer


@pytest.mark.parametrize("numbers", [2, 4])
@pytest.mark.parametrize("padded", [False, True])
def test_is_hugging_face(numbers, padded):
    layer = randomise(layer_of()).double()
    queries, references, tokens = inputs(numbers)
    padding = torch.rand(2, TOKENS) < 0.3 if padded else None
    shapes = {"spatial_shapes": torch.tensor(GRIDS), "spatial_shapes_list": GRIDS}
    mask = None if padding is None else ~padding
    expected, shares = peer_of(layer)(
        queries, attention_mask=mask, encoder_hidden_states=tokens, reference_points=references, **shapes
    )
    torch.testing.assert_close(layer(queries, references, tokens, GRIDS, padding), expected, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(layer.shares(queries), shares, atol=1e-12, rtol=1e-12)


def test_starts_as_in_the_paper():
    layer = layer_of(num_heads=8, points=3)
    queries, references, _ = inputs(dtype=torch.float32)
    torch.testing.assert_close(layer.shares(queries), torch.full((2, 5, 8, 3, 3), 1 / 9))
    steps = (layer.locations(queries, references, GRIDS) - references[:, :, None, :, None]) * torch.tensor(
        [(columns, rows) for rows, columns in GRIDS]
    )[:, None]
    around = [(1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1)]  # eight heads, eight neighbours
    for head, (x, y) in enumerate(around):
        for point in range(3):
            expected = torch.tensor([x * (point + 1.0), y * (point + 1.0)]).expand(2, 5, 3, 2)
            torch.testing.assert_close(steps[:, :, head, :, point], expected, atol=1e-5, rtol=1e-5)
    xavier = (6 / (32 + 32)) ** 0.5  # the bound of uniform weights; that of a fresh nn.Linear is 0.58 of it
    for linear in (layer.value, layer.projection):
        assert 0.9 * xavier < linear.weight.abs().max() <= xavier
        assert not linear.bias.any()


@torch.no_grad()
def test_the_middle_of_a_pixel_reads_that_pixel():
    """One level, one point, no offset: the output is the value of the pixel at the reference."""
    layer = layer_of(levels=1, points=1).double()
    nn.init.zeros_(layer.offsets.bias)
    tokens = torch.randn(2, 24, 32, dtype=torch.float64)
    row, column = 4, 1
    references = torch.tensor([(column + 0.5) / 4, (row + 0.5) / 6], dtype=torch.float64).expand(2, 1, 1, 2)
    found = layer(torch.randn(2, 1, 32, dtype=torch.float64), references, tokens, [(6, 4)])
    torch.testing.assert_close(found[:, 0], layer.projection(layer.value(tokens[:, row * 4 + column])))


@torch.no_grad()
def test_a_box_scales_the_offsets():
    """Half the width of a box is the offset of the last point of the head that looks along x."""
    layer = layer_of(num_heads=4)
    queries, references, _ = inputs(4, dtype=torch.float32)
    places = layer.locations(queries, references, GRIDS)
    torch.testing.assert_close(places[:, :, 0, :, 1, 0], references[..., 0] + references[..., 2] / 2)
    torch.testing.assert_close(places[:, :, 0, :, 0, 0], references[..., 0] + references[..., 2] / 4)


def test_gradients_check():
    layer = randomise(layer_of(dim=4, num_heads=2, levels=1, points=1)).double()
    queries = torch.randn(1, 2, 4, dtype=torch.float64, requires_grad=True)
    references = (torch.rand(1, 2, 1, 2, dtype=torch.float64) * 0.5 + 0.25).requires_grad_()
    tokens = torch.randn(1, 12, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *args: layer(*args, [(3, 4)]), (queries, references, tokens))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grids": GRIDS[:2]}, r"3 levels.*2 grids"),
        ({"references": torch.rand(2, 5, 3, 3)}, r"references.* 3 "),
        ({"grids": [(6, 4), (3, 2), (2, 2)]}, rf"{TOKENS + 2} .*{TOKENS}"),
    ],
)
def test_wrong_inputs_are_named(change, message):
    queries, references, tokens = inputs(dtype=torch.float32)
    given = {"queries": queries, "references": references, "tokens": tokens, "grids": GRIDS} | change
    with pytest.raises(InputError, match=message):
        layer_of()(**given)


def test_heads_divide_the_width():
    with pytest.raises(ConfigError, match=r"32 .*num_heads 5"):
        layer_of(num_heads=5)
