"""Patch stems and patch merging."""

import pytest
import torch

from vitrail.layers.downsample import PatchMerge, PatchStem
from vitrail.layers.norm import LayerNormConfig
from vitrail.layers.patch import LinearPatchConfig
from vitrail.layers.stage import to_map


def test_stem_gives_the_patches_as_a_map():
    patch = LinearPatchConfig(size=(4, 2))
    stem, images = PatchStem(3, 8, patch=patch, norm=LayerNormConfig()), torch.randn(2, 3, 12, 8)
    expected = to_map(stem.norm(stem.patch(images)), (3, 4))
    assert torch.equal(stem(images), expected)
    bare = PatchStem(3, 8, patch=patch)
    assert torch.equal(bare(images), to_map(bare.patch(images), (3, 4)))


def test_merging_reads_four_neighbours_column_by_column():
    merge = PatchMerge(1, 4, norm=LayerNormConfig(), norm_first=True)
    merge.norm, merge.reduction = torch.nn.Identity(), torch.nn.Identity()
    maps = torch.arange(8.0).reshape(1, 1, 2, 4)  # 0 1 2 3 over 4 5 6 7
    merged = merge(maps)
    assert merged.shape == (1, 4, 1, 2)
    assert merged[0, :, 0, 0].tolist() == [0, 4, 1, 5]
    assert merged[0, :, 0, 1].tolist() == [2, 6, 3, 7]


@pytest.mark.parametrize("norm_first", [True, False])
def test_an_odd_edge_is_padded_with_zeros(norm_first):
    merge = PatchMerge(3, 8, norm=LayerNormConfig(), norm_first=norm_first)
    maps = torch.randn(2, 3, 5, 3)
    padded = torch.zeros(2, 3, 6, 4)
    padded[:, :, :5, :3] = maps
    assert merge(maps).shape == (2, 8, 3, 2)
    assert torch.equal(merge(maps), merge(padded))


def test_the_norm_stands_before_the_map_or_after_it():
    maps = torch.randn(2, 3, 4, 4)
    before, after = (PatchMerge(3, 8, norm=LayerNormConfig(), norm_first=first) for first in (True, False))
    torch.testing.assert_close(before(10 * maps), before(maps), atol=1e-4, rtol=1e-4)
    merged = after(maps)
    torch.testing.assert_close(merged.mean(dim=1), torch.zeros(2, 2, 2), atol=1e-5, rtol=0)
    assert before(maps).mean(dim=1).abs().max() > 1e-3
