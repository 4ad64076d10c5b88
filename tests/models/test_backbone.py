"""Images that a model cannot take: the message says what came and what fits."""

import pytest
import torch
from registered import pictures, tiny

from vitrail.errors import InputError, ResampledNotice
from vitrail.models.backbone import BackboneConfig, Features

BAD = {
    "one image": (
        torch.zeros(3, 24, 16),
        r"3 dimensions \(3, 24, 16\); the model takes 4: batch, 3 channels, height, width \(add .* images\[None\]\)",
    ),
    "a clip": (torch.zeros(2, 3, 4, 24, 16), r"5 dimensions \(2, 3, 4, 24, 16\); the model takes 4"),
    "one channel": (torch.zeros(2, 1, 24, 16), r"images have 1 channels; the model takes 3$"),
    "channels last": (torch.zeros(2, 24, 16, 3), r"24 channels; .* takes 3 \(channels stand last here: .*0, 3, 1, 2"),
    "bytes": (torch.zeros(2, 3, 24, 16, dtype=torch.uint8), r"torch.uint8; the model takes floating .*float\(\) / 255"),
    "double": (torch.zeros(2, 3, 24, 16).double(), r"images are torch.float64, the weights torch.float32; .*images.to"),
    "an array": (torch.zeros(2, 3, 24, 16).numpy(), r"images are a ndarray; the model takes a tensor"),
    "nothing": (None, r"images are a NoneType"),
    "no division": (torch.zeros(2, 3, 25, 16), r"25 x 16 pixels does not divide .* nearest size that does is 24 x 16"),
    "other size": (
        torch.zeros(2, 3, 32, 16),
        r"images are 32 x 16; the model is built for 24 x 16. .*model.resize\(\(32, 16\)\).*dynamic_size=True",
    ),
}


@pytest.mark.parametrize(("images", "message"), BAD.values(), ids=BAD.keys())
def test_bad_images_are_explained(images, message):
    with pytest.raises(InputError, match=message):
        tiny()(images)


def test_dynamic_size_still_needs_whole_patches():
    model = tiny(dynamic_size=True)
    assert model(torch.randn(1, 3, 40, 8)).shape == (1, 5)
    with pytest.raises(InputError, match="nearest size that does is 40 x 8"):
        model(torch.randn(1, 3, 39, 8))


@pytest.mark.parametrize(("size", "expected"), [(32, (32, 32)), ((16, 40), (16, 40)), ([16, 40], (16, 40))], ids=str)
def test_resize_moves_the_model_in_place(size, expected):
    model = tiny()
    with pytest.warns(ResampledNotice, match=f"from 24 x 16 to {expected[0]} x {expected[1]} pixels"):
        assert model.resize(size) is model
    assert model.config.image_size == expected
    assert model(pictures(model)).shape == (2, 5)


def test_resize_to_the_same_size_changes_nothing():
    model = tiny()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.resize((24, 16))  # silent: a warning would be an error here
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_resize_refuses_a_size_that_does_not_divide_and_stays():
    model = tiny()
    with pytest.raises(InputError, match="30 x 16"):
        model.resize((30, 16))
    assert model.config.image_size == (24, 16)


@pytest.mark.parametrize("prefix", [0, 1, 5])
def test_features_split_tokens_once(prefix):
    tokens = torch.arange(2 * (prefix + 6) * 4).float().reshape(2, prefix + 6, 4)
    features = Features.from_tokens(tokens, (3, 2))
    assert torch.equal(torch.cat([features.prefix, features.patches], dim=1), tokens)
    assert features.prefix.shape == (2, prefix, 4)
    (level,) = features.pyramid
    assert level.shape == (2, 4, 3, 2)
    assert torch.equal(level[:, :, 2, 1], tokens[:, -1])
    assert torch.equal(level[:, :, 0, 1], tokens[:, prefix + 1])


def test_a_family_must_say_its_grid():
    with pytest.raises(NotImplementedError, match=r"BackboneConfig\.grid"):
        BackboneConfig().grid((224, 224))
