"""Rotary positions: invariants of a rotation, relative offsets, and angles by hand."""

import copy
import itertools
import math

import pytest
import torch

from vitrail.errors import ConfigError
from vitrail.layers.rope import RopeConfig

GRID, HEAD = (3, 4), 8
CONFIGS = {
    f"{coordinates}-{pairs}": RopeConfig(coordinates=coordinates, pairs=pairs)
    for coordinates in ("index", "centred")
    for pairs in ("neighbours", "halves")
}
every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())


def make(config, prefix=1, grid=GRID):
    return config.build(HEAD, grid=grid, num_prefix=prefix)


@every_config
@pytest.mark.parametrize("prefix", [0, 1, 5])
def test_the_prefix_stays_and_norms_are_kept(config, prefix):
    heads = torch.randn(2, 3, prefix + 12, HEAD)
    turned = make(config, prefix)(heads, GRID)
    assert torch.equal(turned[:, :, :prefix], heads[:, :, :prefix])
    assert not torch.allclose(turned[:, :, prefix + 1 :], heads[:, :, prefix + 1 :])
    torch.testing.assert_close(turned.norm(dim=-1), heads.norm(dim=-1))


@every_config
def test_similarity_depends_on_the_offset_alone(config):
    q, k = torch.randn(HEAD), torch.randn(HEAD)
    rope = make(config, prefix=0)
    queries, keys = (rope(vector.expand(1, 1, 12, HEAD), GRID)[0, 0] for vector in (q, k))
    similarity = queries @ keys.T  # 12 12
    by_offset = {}
    places = list(itertools.product(range(GRID[0]), range(GRID[1])))
    for (i, (y, x)), (j, (v, u)) in itertools.product(enumerate(places), enumerate(places)):
        by_offset.setdefault((y - v, x - u), []).append(similarity[i, j].item())
    spread = max(max(values) - min(values) for values in by_offset.values())
    assert spread < 1e-4
    means = [sum(values) / len(values) for values in by_offset.values()]
    assert max(means) - min(means) > 0.1  # and it does depend on it
    assert by_offset[0, 1][0] != pytest.approx(by_offset[1, 0][0], abs=1e-3)  # rows are not columns


def turn(a, b, angle):
    return a * math.cos(angle) - b * math.sin(angle), b * math.cos(angle) + a * math.sin(angle)


@pytest.mark.parametrize("pairs", ["neighbours", "halves"])
def test_angles_by_hand(pairs):
    config = RopeConfig(theta=100.0, pairs=pairs)
    heads = torch.randn(1, 1, 12, HEAD)
    row, column = 2, 3
    found = make(config, prefix=0)(heads, GRID)[0, 0, row * GRID[1] + column]
    vector = heads[0, 0, row * GRID[1] + column].tolist()
    angles = [row * 1.0, row * 0.1, column * 1.0, column * 0.1]
    channels = [(2 * i, 2 * i + 1) if pairs == "neighbours" else (i, i + 4) for i in range(4)]
    expected = [0.0] * HEAD
    for (a, b), angle in zip(channels, angles, strict=True):
        expected[a], expected[b] = turn(vector[a], vector[b], angle)
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-5, rtol=1e-5)


def angles_of(config, grid):
    rope = config.build(4, grid=grid, num_prefix=0)  # one frequency: the angles are the coordinates
    return torch.atan2(rope.sin, rope.cos)[:, ::2]  # N 2


def test_centred_coordinates_are_whole_turns_from_the_middle():
    angles = angles_of(RopeConfig(coordinates="centred", pairs="neighbours"), (1, 8))
    centres = [(2 * (i + 0.5) / 8 - 1) * 2 * math.pi for i in range(8)]
    wrapped = [math.atan2(math.sin(angle), math.cos(angle)) for angle in centres]
    torch.testing.assert_close(angles[:, 1], torch.tensor(wrapped))
    torch.testing.assert_close(angles[:, 0], torch.zeros(8), atol=1e-6, rtol=0)


def test_reference_stretches_the_index():
    plain = angles_of(RopeConfig(), (2, 2))
    stretched = angles_of(RopeConfig(reference=(2, 2)), (4, 4)).reshape(4, 4, 2)
    torch.testing.assert_close(stretched[::2, ::2].reshape(4, 2), plain)
    torch.testing.assert_close(stretched[0, 1], torch.tensor([0, 0.5]))


@every_config
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_another_grid_is_a_resized_copy_in_any_dtype_of_heads(config, dtype):
    rope = make(config)
    twin = copy.deepcopy(rope)
    twin.resize((5, 2))
    heads = torch.randn(1, 1, 11, HEAD).to(dtype)
    assert torch.equal(rope(heads, (5, 2)), twin(heads, (5, 2)))


def test_tables_are_not_weights():
    assert not make(RopeConfig()).state_dict()


def test_a_width_that_does_not_divide_is_named():
    with pytest.raises(ConfigError, match="head_dim is 6"):
        RopeConfig().build(6, grid=GRID, num_prefix=0)
