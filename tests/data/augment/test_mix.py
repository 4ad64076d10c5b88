"""Mixed images and labels: each label's weight is its image's share of the pixels."""

import pytest
import torch

from vitrail.data.augment.augmentation import MixConfig
from vitrail.data.augment.mix import Mix, cut_boxes
from vitrail.data.dataset import Batch
from vitrail.data.targets import ClassTarget, LabelsTarget, NumbersTarget

METHODS = [
    MixConfig(mixup=0.8),
    MixConfig(cutmix=1.0),
    MixConfig(patch_mixup=1.0, patch=4),
    MixConfig(mixup=0.8, cutmix=1.0, patch_mixup=1.0, share=0.7),
]
NAMES = ["mixup", "cutmix", "patch_mixup", "all"]


def batch_of(count: int, size=(16, 20)) -> Batch:
    """Sample k is the number k all over, and of class k."""
    images = torch.arange(count).float()[:, None, None, None].expand(count, 3, *size).contiguous()
    return Batch(images, {"label": torch.arange(count)}, 1000 + torch.arange(count))


def mixer(config: MixConfig, num_classes: int) -> Mix:
    return Mix(config, schema={"label": ClassTarget(classes=tuple(map(str, range(num_classes))))}, seed=0)


@pytest.mark.parametrize("config", METHODS[1:3], ids=NAMES[1:3])
@pytest.mark.parametrize("size", [(16, 20), (7, 13)], ids=str)
def test_label_weights_are_the_shares_of_pixels_exactly(config, size):
    batch = batch_of(64, size)
    found = mixer(config, 64)(batch, epoch=0)
    for index in range(64):
        image, partner = found.images[index], index ^ 1
        own = (image == index).sum() / image.numel()
        assert ((image == index) | (image == partner)).all()
        assert found.targets["label"][index, index] == own
        assert found.targets["label"][index, partner] == 1 - own
    assert found.targets["label"].count_nonzero(dim=1).max() == 2
    assert 0.3 < found.targets["label"].diagonal().mean() < 0.8


def test_mixup_weighs_pixels_and_labels_alike():
    batch = Batch(torch.randn(32, 3, 8, 8), {"label": torch.arange(32)}, torch.arange(32))
    found = mixer(MixConfig(mixup=0.8), 32)(batch, epoch=0)
    for index in range(32):
        own, partner = found.targets["label"][index, index], index ^ 1
        expected = batch.images[index] * own + batch.images[partner] * (1 - own)
        torch.testing.assert_close(found.images[index], expected, rtol=0, atol=1e-6)
        torch.testing.assert_close(found.targets["label"][index, partner], 1 - own)


@pytest.mark.parametrize("config", METHODS, ids=NAMES)
def test_labels_sum_to_one(config):
    found = mixer(config, 40)(batch_of(40), epoch=2)
    torch.testing.assert_close(found.targets["label"].sum(1), torch.ones(40))
    assert found.targets["label"].dtype == torch.float32


@pytest.mark.parametrize("config", METHODS, ids=NAMES)
def test_pairs_mix_alike_wherever_they_are(config):
    images = torch.randn(12, 3, 8, 8)
    whole = Batch(images, {"label": torch.arange(12)}, torch.arange(12) * 7)
    run = mixer(config, 12)
    together = run(whole, epoch=1)
    for chosen in (torch.tensor([4, 5]), torch.tensor([10, 11, 2, 3]), torch.arange(6, 12)):
        alone = run(whole.with_tensors([tensor[chosen] for tensor in whole.tensors()]), epoch=1)
        assert torch.equal(alone.images, together.images[chosen])
        assert torch.equal(alone.targets["label"], together.targets["label"][chosen])
    assert not torch.equal(run(whole, epoch=2).images, together.images)


@pytest.mark.parametrize("config", METHODS, ids=NAMES)
@pytest.mark.parametrize("count", [1, 7])
def test_last_of_an_odd_batch_stays(config, count):
    batch = batch_of(count)
    found = mixer(config, 10)(batch, epoch=0)
    torch.testing.assert_close(found.images[-1], batch.images[-1])
    torch.testing.assert_close(found.targets["label"][-1], torch.eye(10)[count - 1])


def test_several_labels_and_numbers_are_mixed_too():
    marks = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 1.0]])
    ages = torch.tensor([[10.0], [30.0]])
    schema = {"labels": LabelsTarget(classes=tuple("abcd")), "numbers": NumbersTarget(names=("age",))}
    batch = batch_of(2)._replace(targets={"labels": marks, "numbers": ages})
    found = Mix(MixConfig(cutmix=1.0), schema=schema, seed=0)(batch, epoch=0)
    own = (found.images[0] == 0).float().mean()
    assert 0 < own < 1
    expected = torch.stack([own, torch.tensor(1.0), torch.tensor(0.0), 1 - own])
    torch.testing.assert_close(found.targets["labels"][0], expected)
    torch.testing.assert_close(found.targets["numbers"][0, 0], 10 * own + 30 * (1 - own))


def test_share_and_methods_are_drawn_for_each_image():
    found = mixer(MixConfig(mixup=1.0, cutmix=1.0, share=0.6), 2000)(batch_of(2000, (16, 16)), epoch=0)
    flat = found.images.flatten(1)
    own, partner = torch.arange(2000)[:, None], (torch.arange(2000) ^ 1)[:, None]
    untouched = (flat == own).all(1)
    cut = ((flat == own) | (flat == partner)).all(1) & ~untouched
    assert 720 < untouched.sum() < 900  # 800 drawn so, and a few boxes without a pixel
    assert 520 < cut.sum() < 660


def test_patches_come_whole():
    found = mixer(MixConfig(patch_mixup=1.0, patch=4), 8)(batch_of(8, (10, 12)), epoch=0)
    for top in range(0, 10, 4):
        for left in range(0, 12, 4):
            patch = found.images[:, :, top : top + 4, left : left + 4].flatten(1)
            assert (patch == patch[:, :1]).all()
    assert any(len(image.unique()) == 2 for image in found.images)


@pytest.mark.parametrize(
    ("draw", "kept", "expected"),
    [
        ((0.5, 0.5), 0.75, (4, 4, 8, 8)),  # half of each side, around the middle
        ((0.0, 0.0), 0.75, (0, 0, 4, 4)),  # three quarters of it beyond the corner
        ((0.99, 0.5), 0.75, (11, 4, 5, 8)),
        ((0.5, 0.5), 1.0, (8, 8, 0, 0)),
        ((0.5, 0.5), 0.0, (0, 0, 16, 16)),
    ],
)
def test_box_worked_out_by_hand(draw, kept, expected):
    box = cut_boxes(torch.tensor([draw]), torch.tensor([kept]), (16, 16))
    assert tuple(int(field) for field in box[:4]) == expected


def test_without_mixing_the_batch_stays():
    for config in (MixConfig(), MixConfig(mixup=1.0, share=0.0)):
        batch = batch_of(4)
        assert mixer(config, 6)(batch, epoch=0) is batch


def test_images_without_targets_are_mixed():
    found = Mix(MixConfig(mixup=1.0), schema={}, seed=0)(batch_of(4)._replace(targets={}), epoch=0)
    assert found.targets == {}
    assert not torch.equal(found.images, batch_of(4).images)
