"""Augmentation of batches: what a config says happens, and company, order and device change nothing."""

import pytest
import torch
import torch.nn.functional as F

from vitrail.config import apply
from vitrail.data.augment.augmentation import Augment, AugmentConfig, MixConfig
from vitrail.data.augment.mix import Mix
from vitrail.data.dataset import Batch
from vitrail.data.preprocess import Preprocess
from vitrail.data.randomness import Stream
from vitrail.data.targets import ClassTarget
from vitrail.errors import ConfigError, InputError

PLAIN = AugmentConfig(crop="none", flip=False)
STRONG = AugmentConfig(colour=0.4, randaugment=2, erase=0.5)
SHIFTED = apply(STRONG, {"crop": "shift"})
SCHEMA = {"label": ClassTarget(classes=tuple("abcde"))}


def batch_of(count: int, channels: int = 3, size=(20, 24)) -> Batch:
    images = torch.randint(0, 256, (count, channels, *size), dtype=torch.uint8)
    return Batch(images, {"label": torch.arange(count) % 5}, 100 + torch.arange(count))


def augment(config: AugmentConfig, image_size=(16, 12), channels: int = 3, seed: int = 0) -> Augment:
    return Augment(config, Preprocess(image_size=image_size, channels=channels), seed=seed, schema=SCHEMA)


def part(batch: Batch, chosen: torch.Tensor) -> Batch:
    return batch.with_tensors([tensor[chosen] for tensor in batch.tensors()])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(16, 12), (20, 24), (9, 40)], ids=str)
@pytest.mark.parametrize("config", [PLAIN, STRONG, SHIFTED], ids=["plain", "strong", "shifted"])
def test_any_batch_becomes_normalised_floats(config, channels, size):
    batch = batch_of(6, channels, size)
    before = batch.images.clone()
    found = augment(config, channels=channels)(batch, epoch=0)
    assert found.images.shape == (6, channels, 16, 12)
    assert found.images.dtype == torch.float32
    assert found.images.abs().max() <= 1 + 1e-6
    assert found.images.flatten(1).std(dim=1).min() > 0.01
    assert found.targets["label"] is batch.targets["label"]
    assert found.ids is batch.ids
    assert torch.equal(batch.images, before)


@pytest.mark.parametrize("size", [(16, 12), (20, 80)], ids=str)
@pytest.mark.parametrize("config", [PLAIN, STRONG, SHIFTED], ids=["plain", "strong", "shifted"])
def test_batch_without_images_passes(config, size):  # a process may have no part in the last batch of an epoch
    mix = Mix(MixConfig(mixup=0.8, cutmix=1.0, patch_mixup=1.0), schema=SCHEMA, seed=0)
    found = mix(augment(config)(batch_of(0, size=size), epoch=0), epoch=0)
    assert found.images.shape == (0, 3, 16, 12)
    assert found.targets["label"].shape == (0, 5)


@pytest.mark.parametrize("config", [AugmentConfig(), STRONG, SHIFTED], ids=["crop", "strong", "shifted"])
def test_other_samples_and_order_change_no_bit(config):
    whole, run = batch_of(37), augment(config)
    together = run(whole, epoch=3).images
    for chosen in (torch.tensor([36]), torch.tensor([8, 3, 21]), torch.randperm(37)):
        assert torch.equal(run(part(whole, chosen), epoch=3).images, together[chosen])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.parametrize("size", [(16, 12), (20, 24)], ids=["resized", "as stored"])
@pytest.mark.parametrize("config", [AugmentConfig(), STRONG, SHIFTED], ids=["crop", "strong", "shifted"])
def test_gpu_gives_the_same_images_and_is_never_waited_for(config, size):
    batch, run = batch_of(37), augment(config, size)
    mix = Mix(MixConfig(mixup=0.8, cutmix=1.0, patch_mixup=1.0), schema=SCHEMA, seed=0)
    on_gpu = batch.with_tensors([tensor.cuda() for tensor in batch.tensors()])
    mix(run(on_gpu, epoch=3), epoch=3)  # constants are copied once
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = mix(run(on_gpu, epoch=3), epoch=3)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected = mix(run(batch, epoch=3), epoch=3)
    # A level or a pixel may fall to the other side of a limit, where a logarithm or a sine is rounded otherwise. A CPU
    # resizes whole images in whole numbers, which differs by a few levels of 255 in noise.
    atol = 0.04 if config.crop == "shift" and size != (20, 24) else 1e-3
    assert torch.isclose(found.images.cpu(), expected.images, atol=atol).float().mean() > 0.98
    torch.testing.assert_close(found.targets["label"].cpu(), expected.targets["label"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("config", [AugmentConfig(), STRONG, SHIFTED], ids=["crop", "strong", "shifted"])
def test_seed_epoch_and_number_each_change_the_images(config):
    batch = batch_of(8)
    first = augment(config)(batch, epoch=0).images
    assert torch.equal(augment(config)(batch, epoch=0).images, first)
    others = [
        augment(config)(batch, epoch=1),
        augment(config, seed=1)(batch, epoch=0),
        augment(config)(batch._replace(ids=batch.ids + 1), epoch=0),
    ]
    for other in others:
        assert not torch.isclose(other.images, first).flatten(1).all(dim=1).any()


def test_one_choice_does_not_move_another():
    batch = batch_of(12)
    plain = augment(AugmentConfig())(batch, epoch=0).images
    erased = augment(AugmentConfig(erase=1.0))(batch, epoch=0).images
    assert torch.equal(erased[erased != 0], plain[erased != 0])


def test_no_two_choices_share_their_numbers(monkeypatch):
    names, uniform = [], Stream.uniform
    monkeypatch.setattr(Stream, "uniform", lambda self, name, count: names.append(name) or uniform(self, name, count))
    mix = Mix(MixConfig(mixup=0.8, cutmix=1.0, patch_mixup=1.0), schema=SCHEMA, seed=0)
    mix(augment(STRONG)(batch_of(4), epoch=0), epoch=0)
    assert len(names) == len(set(names)) == 9


def test_without_augmentation_images_are_resized_and_normalised():
    batch, size = batch_of(4), (16, 12)
    preprocess = Preprocess(image_size=size, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    levels = F.interpolate(batch.images, size=size, mode="bicubic", antialias=True) / 255
    mean, std = torch.tensor([preprocess.mean, preprocess.std])[:, :, None, None]
    found = Augment(PLAIN, preprocess, seed=0)(batch, epoch=5)
    torch.testing.assert_close(found.images, (levels - mean) / std)
    assert found.targets["label"] is batch.targets["label"]


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear", "nearest"])
def test_without_augmentation_training_sees_the_pixels_of_evaluation(interpolation):
    batch, preprocess = batch_of(4, size=(20, 20)), Preprocess(image_size=(32, 32), interpolation=interpolation)
    assert torch.equal(Augment(PLAIN, preprocess, seed=0)(batch, epoch=0).images, preprocess(batch.images))


def test_half_of_the_images_are_flipped():
    batch = batch_of(400, 1, (4, 6))
    found = augment(apply(PLAIN, {"flip": True}), (4, 6), channels=1)(batch, epoch=0).images
    straight = Preprocess(image_size=(4, 6), channels=1)(batch.images)
    flipped = (found == straight.flip(3)).flatten(1).all(1)
    assert torch.equal(found[~flipped], straight[~flipped])
    assert 160 < flipped.sum() < 240


def test_shift_reaches_every_offset_and_pads_with_black():
    batch = batch_of(300, 1, (6, 6))
    batch = batch._replace(images=torch.full_like(batch.images, 255))
    config = apply(PLAIN, {"crop": "shift", "padding": 1})
    found = augment(config, (6, 6), channels=1)(batch, epoch=0).images
    assert set(found.unique().tolist()) == {-1.0, 1.0}
    places = {
        (tuple(image[0, 0].tolist()), tuple(image[0, -1].tolist()), tuple(image[0, :, 0].tolist())) for image in found
    }
    assert len(places) == 9


def test_erased_boxes_are_of_the_share_and_size_that_the_paper_says():
    batch = batch_of(1000, 1, (32, 32))
    batch = batch._replace(images=torch.full_like(batch.images, 255))
    found = augment(apply(PLAIN, {"erase": 0.3}), (32, 32), channels=1)(batch, epoch=0).images
    shares = (found == 0).flatten(1).float().mean(1)
    erased = shares > 0
    assert 240 < erased.sum() < 360
    assert shares[erased].min() > 0.015
    assert shares[erased].max() < 0.36
    assert 0.12 < shares[erased].mean() < 0.23
    for image in found[erased][:20, 0]:
        rows, columns = (image == 0).any(1).sum(), (image == 0).any(0).sum()
        assert (image == 0).sum() == rows * columns


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 3, 8, 8), "torch.float32"),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), r"\(3, 8, 8\)"),
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), "B 3 H W"),
    ],
)
def test_wrong_images_are_refused(images, message):
    with pytest.raises(InputError, match=message):
        augment(PLAIN)(Batch(images, {}, torch.arange(2)), epoch=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": (0.9, 0.1)}, "scale"),
        ({"scale": (0.0, 1.0)}, "scale"),
        ({"ratio": (2.0, 1.0)}, "ratio"),
        ({"ratio": (0.0, 1.0)}, "ratio"),
        ({"magnitude": 11.0}, r"magnitude .*11"),
        ({"erase": 1.5}, r"erase .*1.5"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        AugmentConfig(**options)


def test_patches_of_no_pixels_are_refused():
    with pytest.raises(ConfigError, match=r"patch.* 0"):
        MixConfig(patch=0)
