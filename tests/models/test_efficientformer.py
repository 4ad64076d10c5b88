"""EfficientFormer: published sizes, which blocks have attention, its bias by offset."""

import pytest
import torch
from support.peers import timm
from support.published import Published, check_published, sizes
from support.registered import pictures, tiny

import vitrail
from vitrail.errors import InputError, ResampledNotice, Unsupported
from vitrail.layers.block import Block
from vitrail.models.checkpoint.families import efficientformer as words
from vitrail.models.efficientformer import EFFICIENTFORMER, PoolBlock
from vitrail.models.registry import create

TIMM = "timm's results/benchmark-infer-amp-nchw-pt291-cu130-5090.csv"
PUBLISHED = {
    "efficientformer_l1": Published(12.29, 1.30, TIMM),
    "efficientformer_l3": Published(31.41, 3.93, TIMM),
    "efficientformer_l7": Published(82.23, 10.17, TIMM),
}


@sizes(EFFICIENTFORMER.presets)
def test_published_size(name):
    check_published(name, PUBLISHED[name])


@pytest.mark.parametrize(("attention_blocks", "kinds"), [(1, "PPA"), (2, "PAA"), (9, "AAA")])
def test_the_last_blocks_of_the_last_stage_attend(attention_blocks, kinds):
    model = tiny("efficientformer_l1", depths=(1, 1, 1, 3), attention_blocks=attention_blocks)
    found = ["A" if isinstance(block, Block) else "P" for block in model.blocks]
    assert "".join(found) == "PPP" + kinds


def test_attention_by_hand():
    model = tiny("efficientformer_l1").double()
    attention, grid = model.blocks[-1].attention, (3, 2)
    tokens = torch.randn(1, 6, 64, dtype=torch.float64)
    qkv = attention.qkv(tokens).reshape(6, 8, 192)  # N A 2d+v
    head = 3
    q, k, v = qkv[:, head, :32], qkv[:, head, 32:64], qkv[:, head, 64:]
    logits = q @ k.T / 32**0.5
    for one in range(6):
        for other in range(6):
            dy, dx = abs(one // 2 - other // 2), abs(one % 2 - other % 2)
            logits[one, other] += attention.bias.table[head, dy * 2 + dx]
    expected = logits.softmax(dim=-1)
    torch.testing.assert_close(attention.weights(tokens, grid)[0, head], expected)
    mixed = attention.weights(tokens, grid)[0] @ qkv[:, :, 64:].transpose(0, 1)  # A N v
    torch.testing.assert_close(mixed[head], expected @ v)
    torch.testing.assert_close(attention(tokens, grid)[0], attention.projection(mixed.transpose(0, 1).flatten(1)))


def test_pooling_block_by_hand():
    block = tiny("efficientformer_l1").stages[1].blocks[0]
    assert isinstance(block, PoolBlock)
    maps = torch.randn(2, 32, 4, 3)
    pooled = torch.nn.functional.avg_pool2d(maps, 3, stride=1, padding=1, count_include_pad=False) - maps
    middle = maps + block.scale1.layer.gain[:, None, None] * pooled
    expected = middle + block.scale2.layer.gain[:, None, None] * block.mlp(middle)
    torch.testing.assert_close(block(maps), expected)


def test_both_heads_read_the_pooled_vector():
    model = tiny("efficientformer_l1")
    images = pictures(model)
    by_labels, by_teacher = model.heads(model.features(images))
    assert not torch.allclose(by_labels, by_teacher)
    torch.testing.assert_close(model(images), (by_labels + by_teacher) / 2)


def test_another_size_moves_the_biases():
    model = tiny("efficientformer_l1")
    images = torch.randn(1, 3, 64, 96)
    with pytest.raises(InputError, match=r"model.resize\(\(64, 96\)\)"):
        model(images)
    with pytest.warns(ResampledNotice, match=r"96 x 64 .*64 x 96"):
        model.resize((64, 96))
    assert model.blocks[-1].attention.bias.grid == (2, 3)
    assert model(images).shape == (1, 5)


def test_timm_rebuilds_what_is_written(tmp_path):
    model = create("efficientformer_l1", dims=(8, 16, 24, 32), depths=(1, 1, 1, 2), num_classes=5).eval()
    vitrail.save(model, tmp_path / "ours")
    vitrail.convert(tmp_path / "ours", tmp_path / "theirs", to="timm")
    peer = timm.create_model(f"local-dir:{tmp_path / 'theirs'}", pretrained=True).eval()
    images = pictures(model)
    torch.testing.assert_close(peer(images), model(images), atol=1e-5, rtol=1e-5)


def test_timm_has_one_grid_and_keeps_its_norms():
    with pytest.raises(Unsupported, match=r"7 x 7.* 3 x 2"):
        words.TIMM.write(tiny("efficientformer_l1"))
    with pytest.raises(Unsupported, match="fused"):
        words.TIMM.write(tiny("efficientformer_l1").fuse())
