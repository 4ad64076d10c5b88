"""PiT: published sizes, the class token across stages, pooling, and positions."""

import pytest
import torch
from support.peers import timm
from support.published import Published, check_published, sizes
from support.registered import pictures, randomise, tiny

import vitrail
from vitrail.errors import ConfigError, InputError, ResampledNotice
from vitrail.models.pit import MapPosition, pooling
from vitrail.models.registry import resolve

# The paper's table 3 gives 4.9, 10.6, 23.5 and 73.8 M, and 0.7, 1.4, 2.9 and 12.5 G; timm's table one digit more.
PUBLISHED = {
    "pit_ti": Published(4.85, 0.70, "timm"),
    "pit_xs": Published(10.62, 1.40, "timm"),
    "pit_s": Published(23.46, 2.88, "timm"),
    "pit_b": Published(73.76, 12.43, "timm"),
}


@sizes(PUBLISHED)
def test_sizes_are_the_published_ones(name):
    check_published(name, PUBLISHED[name])


def test_every_preset_has_a_published_size():
    assert set(PUBLISHED) == set(vitrail.list_models("pit_*"))


def test_grids_halve_and_odd_ones_keep_their_edge():
    _, config = resolve("pit_ti")
    assert config.grids((224, 224)) == ((27, 27), (14, 14), (7, 7))
    assert config.grids((128, 96)) == ((15, 11), (8, 6), (4, 3))
    with pytest.raises(InputError, match=r"100 x 96 .* 96 x 96"):
        config.grids((100, 96))


def test_pooling_gives_each_channel_its_own():
    maps = torch.randn(1, 4, 5, 6)
    pool = pooling(4, 8)
    assert pool(maps).shape == (1, 8, 3, 3)
    louder = maps.clone()
    louder[:, 1] += 1
    changed = (pool(louder) - pool(maps)).abs().amax(dim=(0, 2, 3)) > 1e-6
    assert changed.tolist() == [False, False, True, True, False, False, False, False]
    assert pooling(4, 6).groups == 2


def test_the_class_token_passes_through_every_stage():
    model = tiny("pit_ti")
    images = pictures(model)
    features = model.features(images)
    assert [each.prefix.shape[1:] for each in model.intermediates(images)] == [(1, 16), (1, 32), (1, 32), (1, 48)]
    maps, prefix = torch.randn(2, 16, 3, 3), torch.randn(2, 1, 16)
    stage = model.stages[1]
    tokens, grid = stage.receive(maps, prefix)
    assert grid == (2, 2)
    assert torch.equal(tokens[:, :1], stage.widen(prefix))
    assert torch.equal(tokens[:, 1:], stage.downsample(maps).flatten(2).transpose(1, 2))
    torch.testing.assert_close(model.head(features.prefix[:, 0]), model.classify(features))


def test_without_a_class_token_the_patches_are_averaged():
    model = tiny("pit_ti", class_token=False)
    features = model.features(pictures(model))
    assert features.prefix.shape == (2, 0, 48)
    torch.testing.assert_close(model.classify(features), model.head(features.patches.mean(dim=1)))
    assert not any("widen" in name for name, _ in model.named_parameters())


def test_positions_are_a_map_and_spare_the_prefix():
    position = randomise(MapPosition(4, grid=(2, 3)))
    tokens = torch.zeros(1, 1 + 6, 4)
    found = position(tokens, (2, 3))
    assert torch.equal(found[:, 0], tokens[:, 0])
    assert torch.equal(found[0, 1:].T.reshape(4, 2, 3), position.table)
    larger = position.at((4, 5))
    position.resize((4, 5))
    assert position.table.shape == (4, 4, 5)
    assert torch.equal(position.at((4, 5)), larger)


def test_resizing_moves_the_positions_of_the_first_stage():
    model = tiny("pit_ti")
    with pytest.warns(ResampledNotice, match="positions resampled"):
        model.resize((48, 40))
    assert model.stages[0].position.table.shape == (16, 11, 9)
    assert model(pictures(model)).shape == (2, 5)


def test_widths_must_be_one_number_a_stage():
    with pytest.raises(ConfigError, match=r"dims.* 2 .*depths"):
        vitrail.create("pit_ti", dims=(32, 64))


def test_timm_builds_what_is_written_for_it(tmp_path):
    model = vitrail.create("pit_ti", num_classes=3, channels=1, image_size=(64, 96)).eval()
    vitrail.save(model, tmp_path / "ours")
    vitrail.convert(tmp_path / "ours", tmp_path / "theirs", to="timm")
    peer = timm.create_model(f"local-dir:{tmp_path / 'theirs'}", pretrained=True).eval()
    images = pictures(model)
    torch.testing.assert_close(peer(images), model(images), atol=1e-5, rtol=1e-5)
