"""Layers of DETR and Deformable DETR: shapes, masks, and that positions are no content."""

import torch

from vitrail.layers.detr import BoxMLP, DecoderLayer, DeformableDecoderLayer, DeformableEncoderLayer, EncoderLayer

SIZES = {"num_heads": 2, "hidden": 24}
GRIDS = [(4, 3), (2, 2)]
TOKENS = 16


def test_encoder_sees_positions():
    layer, tokens = EncoderLayer(16, **SIZES).eval(), torch.randn(2, 6, 16)
    plain = layer(tokens, torch.zeros(6, 16))
    assert plain.shape == tokens.shape
    order = torch.randperm(6)
    torch.testing.assert_close(layer(tokens[:, order], torch.zeros(6, 16)), plain[:, order])
    assert not torch.allclose(layer(tokens, torch.randn(6, 16)), plain)


def test_decoder_reads_the_image():
    layer = DecoderLayer(16, **SIZES).eval()
    queries, places, tokens, positions = (
        torch.zeros(2, 3, 16),
        torch.randn(3, 16),
        torch.randn(2, 6, 16),
        torch.randn(6, 16),
    )
    found = layer(queries, places, tokens, positions)
    assert found.shape == (2, 3, 16)
    assert not torch.allclose(found, layer(queries, places, tokens.flip(0), positions))


def test_deformable_layers_keep_shapes():
    encoder = DeformableEncoderLayer(16, **SIZES, levels=2, points=2)
    decoder = DeformableDecoderLayer(16, **SIZES, levels=2, points=2)
    tokens = torch.randn(2, TOKENS, 16)
    assert encoder(tokens, torch.randn(TOKENS, 16), torch.rand(2, TOKENS, 2, 2), GRIDS).shape == tokens.shape
    for numbers in (2, 4):
        found = decoder(torch.randn(2, 5, 16), torch.randn(2, 5, 16), torch.rand(2, 5, numbers), tokens, GRIDS)
        assert found.shape == (2, 5, 16)


def test_masked_queries_do_not_see_each_other():
    layer = DeformableDecoderLayer(16, **SIZES, levels=2, points=2).eval()
    queries, places, boxes = torch.randn(1, 4, 16), torch.randn(1, 4, 16), torch.rand(1, 4, 4)
    tokens, mask = torch.randn(1, TOKENS, 16), torch.tensor([0, 0, 1, 1])
    apart = layer(queries, places, boxes, tokens, GRIDS, mask=mask[:, None] == mask)
    alone = layer(queries[:, :2], places[:, :2], boxes[:, :2], tokens, GRIDS)
    torch.testing.assert_close(apart[:, :2], alone)


def test_boxes_have_four_numbers():
    assert BoxMLP(16)(torch.randn(2, 3, 16)).shape == (2, 3, 4)
