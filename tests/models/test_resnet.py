"""ResNet: residual branches that start at zero, levels for any image size, torchvision's files."""

import pytest
import torch
from parity.compare import randomise
from safetensors.torch import save_file
from support.peers import torchvision
from support.published import Published, check_published, sizes
from support.registered import pictures, tiny

import vitrail
from vitrail.models.registry import create

# timm's table of results; the paper counts 1.8 and 3.8 GMACs, without the convolutions of shortcuts.
PUBLISHED = {
    "resnet18": Published(11.69, 1.82, "timm"),
    "resnet34": Published(21.80, 3.67, "timm"),
    "resnet50": Published(25.56, 4.11, "timm"),
    "resnet101": Published(44.55, 7.83, "timm"),
    "resnet152": Published(60.19, 11.56, "timm"),
}


@sizes(PUBLISHED)
def test_published_sizes(name):
    check_published(name, PUBLISHED[name])


def test_zero_init_last_is_an_option():
    gains = [
        create("resnet50", depths=(1, 1, 1, 1), zero_init_last=zero).stages[0].blocks[0].branch[-1].norm.weight
        for zero in (True, False)
    ]
    assert gains[0].abs().max() == 0
    assert gains[1].min() == 1


@pytest.mark.parametrize("size", [(65, 33), (31, 100), (1, 1)])
def test_images_of_any_size_give_the_grids_that_the_config_tells(size):
    model = tiny("resnet18")
    pyramid = model.features(torch.randn(1, 3, *size)).pyramid
    assert tuple(tuple(level.shape[2:]) for level in pyramid) == model.config.grids(size)


def test_torchvision_names_are_read(tmp_path):
    theirs = randomise(torchvision.models.resnet18(num_classes=7))
    save_file(theirs.state_dict(), tmp_path / "resnet18.safetensors")
    from_vitrail = vitrail.load(tmp_path / "resnet18.safetensors", model=create("resnet18", num_classes=7).config)
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(from_vitrail(images), theirs(images))


def test_drop_path_grows_with_depth():
    model = tiny("resnet18", drop_path=0.4)
    rates = [block.drop_path.rate for block in model.blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    model.train()
    images = pictures(model)
    assert not torch.equal(model(images), model(images))
