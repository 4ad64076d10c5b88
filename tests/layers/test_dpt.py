"""Layers of DPT: resolutions, the class token, fusion."""

import torch

from vitrail.layers.dpt import Fusion, Reassemble, ResidualUnit


def test_resolutions():
    patches, prefix = torch.randn(2, 12, 16), torch.randn(2, 1, 16)
    for scale, size in ((4.0, (12, 16)), (2.0, (6, 8)), (1.0, (3, 4)), (0.5, (2, 2))):
        assert Reassemble(16, 6, scale, readout=True)(patches, (3, 4), prefix).shape == (2, 6, *size)


def test_the_class_token_is_read():
    patches, prefix = torch.randn(2, 12, 16), torch.randn(2, 1, 16)
    for readout in (True, False):
        layer = Reassemble(16, 6, 1.0, readout=readout)
        same = torch.allclose(layer(patches, (3, 4), prefix), layer(patches, (3, 4), prefix + 1))
        assert same is not readout


def test_fusion_doubles_and_takes_levels_of_any_size():
    fused = Fusion(8, first=True)(torch.randn(2, 8, 3, 4))
    assert fused.shape == (2, 8, 6, 8)
    assert Fusion(8)(torch.randn(2, 8, 5, 7), fused).shape == (2, 8, 12, 16)


def test_a_silent_unit_changes_nothing():
    unit, maps = ResidualUnit(4), torch.randn(1, 4, 3, 3)
    for parameter in unit.conv2.parameters():
        torch.nn.init.zeros_(parameter)
    torch.testing.assert_close(unit(maps), maps)
