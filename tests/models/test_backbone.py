"""Images that a model cannot take: the error says what is wrong and what is allowed."""

import pytest
import torch
from support.registered import pictures, tiny

from vitrail.errors import InputError, ResampledNotice
from vitrail.models.backbone import BackboneConfig, Features

BAD = {
    "one image": (
        torch.zeros(3, 24, 16),
        r"3 dimensions \(3, 24, 16\).*images\[None\]",
    ),
    "a clip": (torch.zeros(2, 3, 4, 24, 16), r"5 dimensions \(2, 3, 4, 24, 16\)"),
    "one channel": (torch.zeros(2, 1, 24, 16), r"1 channel.*3"),
    "channels last": (torch.zeros(2, 24, 16, 3), r"24 channels.*0, 3, 1, 2"),
    "bytes": (torch.zeros(2, 3, 24, 16, dtype=torch.uint8), r"torch.uint8.*float\(\) / 255"),
    "double": (torch.zeros(2, 3, 24, 16).double(), r"torch.float64.*torch.float32.*images.to"),
    "an array": (torch.zeros(2, 3, 24, 16).numpy(), "ndarray"),
    "nothing": (None, "NoneType"),
    "no division": (torch.zeros(2, 3, 25, 16), r"25 x 16 .* 24 x 16"),
    "other size": (
        torch.zeros(2, 3, 32, 16),
        r"32 x 16.* 24 x 16.*model.resize\(\(32, 16\)\).*dynamic_size=True",
    ),
}


@pytest.mark.parametrize(("images", "message"), BAD.values(), ids=BAD.keys())
def test_bad_images_are_explained(images, message):
    with pytest.raises(InputError, match=message):
        tiny()(images)


def test_dynamic_size_still_needs_whole_patches():
    model = tiny(dynamic_size=True)
    assert model(torch.randn(1, 3, 40, 8)).shape == (1, 5)
    with pytest.raises(InputError, match="40 x 8"):
        model(torch.randn(1, 3, 39, 8))


@pytest.mark.parametrize(("size", "expected"), [(32, (32, 32)), ((16, 40), (16, 40)), ([16, 40], (16, 40))], ids=str)
def test_resize_moves_the_model_in_place(size, expected):
    model = tiny()
    with pytest.warns(ResampledNotice, match=f"24 x 16 .*{expected[0]} x {expected[1]}"):
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
