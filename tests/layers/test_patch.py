"""Patch embedding: as a convolution, as a matrix product, and patch by patch."""

import pytest
import torch
import torch.nn.functional as F
from support.registered import randomise

from vitrail.errors import InputError
from vitrail.layers.conv_stem import ConvStemConfig
from vitrail.layers.patch import LinearPatchConfig, patchify


def embed(channels=3, **options):
    config = LinearPatchConfig(**options)
    return config, randomise(config.build(channels, 8)).double()


@pytest.mark.parametrize("channels", [1, 4, 13])
@pytest.mark.parametrize("size", [(4, 4), (2, 6)], ids=str)
def test_linear_on_patchify_is_the_convolution(channels, size):
    _, layer = embed(channels, size=size)
    images = torch.randn(2, channels, 8, 12, dtype=torch.float64)
    weight, bias = layer.projection.weight, layer.projection.bias
    by_matrix = F.linear(patchify(images, size), weight.flatten(1), bias)
    by_convolution = F.conv2d(images, weight, bias, stride=size).flatten(2).transpose(1, 2)
    torch.testing.assert_close(by_matrix, by_convolution, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(layer(images), by_convolution, atol=1e-12, rtol=1e-12)


def test_patchify_by_hand():
    image = torch.arange(16.0).reshape(1, 1, 4, 4)
    expected = [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    assert patchify(image, (2, 2)).tolist() == [expected]
    two_channels = torch.cat([image, 100 + image], dim=1)
    assert patchify(two_channels, (2, 2))[0, 1].tolist() == [2, 3, 6, 7, 102, 103, 106, 107]
    assert patchify(image, (1, 4))[0, 2].tolist() == [8, 9, 10, 11]


@pytest.mark.parametrize(
    ("size", "stride", "padding"),
    [((7, 7), (4, 4), (2, 2)), ((7, 7), (4, 4), (3, 3)), ((8, 8), (4, 4), (0, 0)), ((3, 5), (2, 4), (1, 2))],
    ids=str,
)
def test_overlapping_patches_are_those_of_unfold(size, stride, padding):
    config, layer = embed(size=size, stride=stride, padding=padding)
    images = torch.randn(2, 3, 24, 16, dtype=torch.float64)
    unfolded = F.unfold(images, size, stride=stride, padding=padding).transpose(1, 2)  # B N (C p q)
    rows, columns = config.grid((24, 16))
    assert rows * columns == unfolded.shape[1]
    expected = F.linear(unfolded, layer.projection.weight.flatten(1), layer.projection.bias)
    torch.testing.assert_close(layer(images), expected, atol=1e-12, rtol=1e-12)


def test_bias_can_be_left_out():
    _, layer = embed(bias=False)
    assert layer.projection.bias is None
    assert not layer(torch.zeros(1, 3, 16, 16, dtype=torch.float64)).any()


@pytest.mark.parametrize(
    ("options", "image", "nearest"),
    [
        ({}, (225, 224), "224 x 224"),
        ({}, (224, 230), "224 x 224"),
        ({}, (224, 235), "224 x 240"),
        ({}, (5, 5), "16 x 16"),
        ({}, (0, 16), "16 x 16"),
        ({"size": (14, 14)}, (224, 518), None),
        ({"size": (14, 14)}, (512, 512), "518 x 518"),
        ({"size": (8, 16)}, (12, 30), "16 x 32"),
        ({"size": (16, 16), "stride": (4, 4)}, (8, 8), "16 x 16"),
        ({"size": (7, 7), "stride": (4, 4), "padding": (3, 3)}, (30, 9), "32 x 8"),
    ],
)
def test_sizes_that_do_not_divide_name_the_nearest(options, image, nearest):
    config = LinearPatchConfig(**options)
    if nearest is None:
        assert config.grid(image) == (image[0] // 14, image[1] // 14)
        return
    with pytest.raises(InputError) as caught:
        config.grid(image)
    assert f"{image[0]} x {image[1]}" in str(caught.value)
    assert str(caught.value).endswith(nearest)
    config.grid(tuple(map(int, nearest.split(" x "))))


@pytest.mark.parametrize(("halvings", "grid"), [(1, (16, 24)), (2, (8, 12)), (3, (4, 6))])
def test_a_conv_stem_halves_the_image_and_doubles_the_width(halvings, grid):
    config = ConvStemConfig(halvings=halvings)
    stem = config.build(2, 32)
    assert config.grid((32, 48)) == grid
    assert stem(torch.randn(2, 2, 32, 48)).shape == (2, grid[0] * grid[1], 32)
    widths = [layer.out_channels for layer in stem.steps.modules() if isinstance(layer, torch.nn.Conv2d)]
    assert widths == [32 >> (halvings - 1 - index) for index in range(halvings)]


def test_convolutions_between_the_first_and_the_last_of_a_width_add_to_what_they_read():
    stem = ConvStemConfig(halvings=2, convs=4).build(3, 16).double().eval()
    convs = [layer for layer in stem.modules() if isinstance(layer, torch.nn.Conv2d)]
    strides = [conv.stride[0] for conv in convs]
    assert strides == [1, 1, 1, 2] * 2 + [1]
    maps = images = torch.randn(2, 3, 16, 24, dtype=torch.float64)
    for index, conv in enumerate(convs[:-1]):
        read = maps if index % 4 in (1, 2) else 0.0
        maps = torch.relu(read + conv(maps) / (1 + 1e-5) ** 0.5)  # the norms are fresh
    torch.testing.assert_close(stem(images), convs[-1](maps).flatten(2).mT)


def test_a_conv_stem_names_a_size_that_fits():
    with pytest.raises(InputError, match="32 x 24"):
        ConvStemConfig(halvings=3).grid((30, 24))
