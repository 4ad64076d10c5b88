"""Packed images: the right pixels, decoded once, never a damaged or an old file, never two at once."""

import base64
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from support.counted_pictures import InMemory, Pictures, noise, packed

from vitrail.data.broken import Tally
from vitrail.data.dataset import RandomSubset, Retargeted, Subset
from vitrail.data.feeds import pack_file
from vitrail.data.feeds.packing import pack
from vitrail.data.preprocess import Preprocess
from vitrail.data.split import carve
from vitrail.data.targets import ClassTarget, LabelsTarget
from vitrail.errors import DataError, Notice


@pytest.fixture
def no_notice():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_parts_of_folds_that_begin_alike_do_not_replace_each_other(tmp_path):
    whole = Pictures(noise(6))
    parts = [RandomSubset(whole, rows, fold=(number, 2)) for number, rows in ((1, [0, 2, 3]), (2, [0, 1, 5]))]
    for part in (*parts, *parts):
        assert torch.equal(packed(part, tmp_path).images, whole.images[part.indices])
    assert whole.reads == 6


@pytest.mark.usefixtures("no_notice")
def test_images_of_that_size_are_copied_exactly_and_decoded_once(tmp_path):
    images = noise(40)
    dataset = Pictures(images)
    first = packed(dataset, tmp_path)
    assert dataset.reads == 40
    second = packed(dataset, tmp_path)
    assert dataset.reads == 40
    for result in (first, second):
        assert torch.equal(result.images, images)
        assert torch.equal(result.targets["label"], dataset.targets["label"])
        assert result.ids.tolist() == list(range(40))
        assert result.sizes.tolist() == [[12, 12]] * 40
        assert (result.schema, result.name, result.skipped, len(result)) == (dataset.schema, "pictures", (), 40)


def test_names_of_any_bytes_have_a_pack(tmp_path):
    images = torch.zeros(3, 3, 4, 4, dtype=torch.uint8)
    named = Pictures(images, name="d\udcf6g")
    assert len(pack(named, Preprocess(image_size=(4, 4)), folder=tmp_path)) == 3


def test_writing_to_packed_images_leaves_the_file_alone(tmp_path):
    images = noise(4)
    packed(Pictures(images), tmp_path).images.zero_()
    assert torch.equal(packed(Pictures(images), tmp_path).images, images)


def test_several_blocks_keep_the_order(tmp_path, monkeypatch):
    monkeypatch.setattr("vitrail.data.feeds.cold._BLOCK", 3 * 12 * 12 * 3)

    class Slow(Pictures):
        def read(self, index):
            time.sleep(0.002 * (index % 4 == 0))
            return super().read(index)

    images = noise(32)
    steps = []
    result = packed(Slow(images), tmp_path, progress=lambda done, total: steps.append((done, total)))
    assert torch.equal(result.images, images)
    assert steps == [(min(done, 32), 32) for done in range(3, 35, 3)]


def test_threads_of_torch_are_given_back(tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        packed(Pictures(noise(4)), tmp_path)
        with ThreadPoolExecutor(1) as fresh:  # what a thread made later gets
            assert (torch.get_num_threads(), fresh.submit(torch.get_num_threads).result()) == (2, 2)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("given", [1, 3])
@pytest.mark.parametrize("size", [(12, 12), (8, 8)], ids=str)
def test_arrays_need_no_file(tmp_path, given, channels, size):
    images = noise(5, channels=given)
    result = packed(InMemory(images), tmp_path, size=size, channels=channels)
    assert torch.equal(result.images, Preprocess(image_size=size, channels=channels).fit(images)[0])
    assert list(tmp_path.iterdir()) == []


def test_a_subset_of_an_array_is_one(tmp_path):
    images = noise(6)
    result = packed(Subset(InMemory(images), [4, 1]), tmp_path)
    assert torch.equal(result.images, images[[4, 1]])
    assert result.targets["label"].tolist() == [1, 1]
    assert result.ids.tolist() == [0, 1]


def test_broken_images_are_left_out_by_name(tmp_path):
    images = noise(300)
    dataset = Pictures(images, broken=(7, 250))
    for _ in range(2):  # built, then opened
        result = packed(dataset, tmp_path)
        kept = [index for index in range(300) if index not in (7, 250)]
        assert result.ids.tolist() == kept
        assert torch.equal(result.images, images[kept])
        assert torch.equal(result.targets["label"], dataset.targets["label"][kept])
        assert result.skipped == (
            ("pictures/7.png", "pictures/7.png: not an image"),
            ("pictures/250.png", "pictures/250.png: not an image"),
        )


def test_more_than_one_in_a_hundred_broken_stops_and_keeps_nothing(tmp_path):
    dataset = Pictures(noise(300), broken=(3, 5, 8, 13))
    with pytest.raises(DataError, match=r"300 images.*1.0 %.*pictures/3.png"):
        packed(dataset, tmp_path)
    assert not list(tmp_path.iterdir())
    assert len(packed(dataset, tmp_path, tally=Tally(400))) == 296


def test_the_limit_is_of_all_splits_together(tmp_path):
    parts = [Pictures(noise(count), broken=(1,), name=f"part of {count}") for count in (195, 5)]
    for _ in range(2):  # built, then opened
        tally = Tally(200)
        assert [len(packed(part, tmp_path, tally=tally)) for part in parts] == [194, 4]
        assert list(tally.found) == ["part of 195/1.png", "part of 5/1.png"]
        with pytest.raises(DataError, match=r"3 .*200 images.*195/1.png.*5/1.png.*third/0.png"):
            packed(Pictures(noise(9), broken=(0,), name="third"), tmp_path, tally=tally)


def test_far_too_many_broken_stop_long_before_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr("vitrail.data.feeds.cold._BLOCK", 10 * 12 * 12 * 3)  # ten images a block
    dataset = Pictures(noise(1000), broken=range(0, 1000, 2))
    with pytest.raises(DataError, match=r"15 .*1,000"):
        packed(dataset, tmp_path)
    assert dataset.reads <= 60  # three blocks, and those that are decoded ahead


def test_a_part_without_a_readable_image_is_refused(tmp_path):
    for _ in range(2):
        with pytest.raises(DataError, match=r"pictures/0.png.*add"):
            packed(Pictures(noise(2), broken=(0, 1)), tmp_path, tally=Tally(1000))


def test_the_limit_itself_is_allowed(tmp_path):
    assert len(packed(Pictures(noise(200), broken=(1, 2)), tmp_path)) == 198
    with pytest.raises(DataError):
        packed(Pictures(noise(200), broken=(1, 2, 3), name="worse"), tmp_path)


def test_a_vanished_file_is_a_broken_image(tmp_path):
    class Vanishing(Pictures):
        def read(self, index):
            return super().read(index) if index else torch.from_numpy(np.load(tmp_path / "gone.npy"))

    result = packed(Vanishing(noise(200)), tmp_path)
    assert "gone.npy" in result.skipped[0][1]


def test_an_empty_data_set_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"pictures.*images"):
        packed(Pictures(noise(0)), tmp_path)


def test_a_changed_data_set_is_packed_again_with_a_notice(tmp_path):
    packed(Pictures(noise(8)), tmp_path)
    changed = Pictures(255 - noise(8), fingerprint="2")
    with pytest.warns(Notice, match="changed"):
        result = packed(changed, tmp_path)
    assert torch.equal(result.images, changed.images)
    assert len(list(tmp_path.glob("*.pack"))) == 1


def test_sizes_channels_and_places_have_files_of_their_own(tmp_path):
    dataset = Pictures(noise(4))
    for options in ({}, {"size": (6, 6)}, {"channels": 1}):
        packed(dataset, tmp_path, **options)
    packed(Pictures(noise(4), name="a/b c"), tmp_path)
    assert len(list(tmp_path.glob("*.pack"))) == 4


def test_folders_of_one_name_in_two_places_have_files_of_their_own(tmp_path, monkeypatch):
    for place in ("one", "two", "one"):
        (tmp_path / place).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / place)
        packed(Pictures(noise(4), name="photos"), tmp_path)
    assert len(list(tmp_path.glob("*.pack"))) == 2


def damage_pixel(data):
    data[5] ^= 1


def damage_description(data):
    data[-100] ^= 1


def cut_off(data):
    del data[-1000:]


def drop_a_block(data):
    del data[:432]


def empty(data):
    data.clear()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (damage_pixel, "bytes 0 to .* are damaged"),
        (damage_description, "description is damaged"),
        (cut_off, "its end is missing"),
        (drop_a_block, "expected"),
        (empty, "0 bytes"),
    ],
)
def test_a_damaged_file_is_built_again_with_a_notice(tmp_path, damage, reason):
    dataset = Pictures(noise(20))
    packed(dataset, tmp_path)
    (file,) = tmp_path.glob("*.pack")
    data = bytearray(file.read_bytes())
    damage(data)
    file.write_bytes(data)
    with pytest.warns(Notice, match=f"{reason}"):
        result = packed(dataset, tmp_path)
    assert torch.equal(result.images, dataset.images)
    assert dataset.reads == 40


def test_a_file_of_another_format_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(pack_file, "FORMAT", 0)
    packed(Pictures(noise(3)), tmp_path)
    monkeypatch.undo()
    with pytest.warns(Notice, match="format 0"):
        packed(Pictures(noise(3)), tmp_path)


def test_a_large_file_is_checked_in_samples_and_in_full_on_request(tmp_path, monkeypatch):
    monkeypatch.setattr("vitrail.data.feeds.cold._BLOCK", 12 * 12 * 3)  # one image a block
    monkeypatch.setattr(pack_file, "_SPOT_CHECK", 12 * 12 * 3 * 5)
    dataset = Pictures(noise(20))
    packed(dataset, tmp_path)
    (file,) = tmp_path.glob("*.pack")
    data = bytearray(file.read_bytes())
    data[432 + 3] ^= 1  # of the second image, between the samples 0, 4, 8, ...
    file.write_bytes(data)
    assert not torch.equal(packed(dataset, tmp_path).images, dataset.images)
    with pytest.warns(Notice, match=r"432 .*864"):
        assert torch.equal(packed(dataset, tmp_path, verify=True).images, dataset.images)


def test_the_file_says_what_it_holds(tmp_path):
    packed(Pictures(noise(200), broken=(4,)), tmp_path)
    (file,) = tmp_path.glob("*.pack")
    _, about = pack_file.read(file)
    assert len(about.pop("pixels")) == 64
    assert len(base64.b64decode(about.pop("sizes"))) == 199 * 2 * 4
    assert about.pop("fit")["image_size"] == [12, 12]
    assert about == {
        "fingerprint": "1",
        "count": 200,
        "broken": {"4": "pictures/4.png: not an image"},
    }


def test_a_part_and_the_whole_that_begin_alike_do_not_replace_each_other(tmp_path):
    whole = Pictures(noise(6))
    part = Subset(whole, [0, 2, 3])
    for _ in range(2):  # a rebuilt file would raise a notice, which is an error here
        assert torch.equal(packed(whole, tmp_path).images, whole.images)
        assert torch.equal(packed(part, tmp_path).images, whole.images[[0, 2, 3]])
    assert whole.reads == 9


@pytest.mark.usefixtures("no_notice")
def test_other_classes_and_labels_decode_nothing(tmp_path):
    whole = Pictures(noise(200), broken=(7,))
    labels = whole.targets["label"]
    turned = {"label": 2 - labels}, {"label": ClassTarget(classes=("c", "b", "a"))}
    several = {"labels": torch.eye(4)[labels]}, {"labels": LabelsTarget(classes=("a", "b", "c", "d"))}
    for targets, schema in [turned, several, ({}, {})] * 2:
        once = Retargeted(whole, targets, schema)
        for dataset in (whole, once, Retargeted(once, targets, schema)):
            result = packed(dataset, tmp_path)
            assert torch.equal(result.images, whole.images[result.ids])
            assert result.targets.keys() == result.schema.keys() == dataset.schema.keys()
            assert all(torch.equal(result.targets[name], dataset.targets[name][result.ids]) for name in result.schema)
            assert [where for where, _ in result.skipped] == ["pictures/7.png"]
    assert whole.reads == 200
    assert len(list(tmp_path.glob("*.pack"))) == 1


def test_another_choice_of_a_part_decodes_nothing(tmp_path):
    whole = Pictures(noise(200), broken=(7, 150))
    for seed in range(3):
        parts = carve(whole, 0.1, seed)
        tally, found = Tally(200), []
        for part in parts:
            labels = {"label": 2 - part.targets["label"]}
            turned = Retargeted(part, labels, {"label": ClassTarget(classes=("c", "b", "a"))})
            result = packed(turned, tmp_path, whole=True, tally=tally)
            readable = [at for at, number in enumerate(part.indices) if number not in whole.broken]
            assert result.ids.tolist() == readable
            assert torch.equal(result.targets["label"], turned.targets["label"][readable])
            assert torch.equal(result.images[result.rows], whole.images[[part.indices[at] for at in readable]])
            found += [where for where, _ in result.skipped]
        assert sorted(found) == sorted(tally.found) == ["pictures/150.png", "pictures/7.png"]
    assert whole.reads == 200
    assert len(list(tmp_path.glob("*.pack"))) == 1


def test_parts_of_one_file_are_told_apart_and_none_may_be_empty(tmp_path):
    whole = Pictures(noise(12), broken=(4,))
    one, two = (RandomSubset(whole, indices) for indices in ([0, 1, 2], [3, 1, 5]))  # their labels are equal
    first, second = (packed(part, tmp_path, whole=True, tally=Tally(200)) for part in (one, two))
    assert torch.equal(first.targets["label"], second.targets["label"])
    assert first.checksum() != second.checksum()
    with pytest.raises(DataError, match=r"pictures/4.png"):
        packed(RandomSubset(whole, [4]), tmp_path, whole=True, tally=Tally(200))


@pytest.mark.parametrize("kind", [Pictures, InMemory])
def test_a_checksum_tells_data_apart_wherever_they_lie(tmp_path, kind):
    images = noise(40)
    first, again = (packed(kind(images), tmp_path / name).checksum() for name in ("here", "there"))
    assert first == again
    other = images.clone()
    other[17, 0, 3, 3] ^= 1
    moved = kind(images)
    moved.targets = {"label": moved.targets["label"].roll(1)}
    others = [kind(other), kind(images[:39]), moved]
    found = [packed(data, tmp_path / str(number)).checksum() for number, data in enumerate(others)]
    assert len({first, *found}) == 4


def test_a_checksum_of_very_many_images_looks_at_some(tmp_path, monkeypatch):
    images = noise(40)
    whole = packed(InMemory(images), tmp_path)
    monkeypatch.setattr("vitrail.data.feeds.packing._CHECKED", 10 * images[0].numel())
    some = whole.checksum()
    images[1] = 0
    assert whole.checksum() == some
    images[4] = 0
    assert whole.checksum() != some
