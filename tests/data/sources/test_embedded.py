"""The embedded data: what it holds, that train and test do not meet, and that its licence is there."""

import hashlib

from support.single_target import classes, counts, labels

from vitrail.data.sources.catalogue import KNOWN
from vitrail.data.sources.embedded import embedded_folder, read_embedded


def test_sizes_and_classes():
    found = read_embedded()
    assert counts(found.train) == [1200] * 10
    assert counts(found.test) == [200] * 10
    assert classes(found.train) == KNOWN["fashion-mnist"].classes
    assert found.train.read(0).shape == (1, 28, 28)
    assert found.train.name == "fashion-mnist-12k"


def test_train_and_test_do_not_meet():
    found = read_embedded()
    train = {image.tobytes() for image in found.train.images}
    assert not any(image.tobytes() in train for image in found.test.images)


def test_the_images_are_the_official_ones():
    # The first images of the official files are taken, unless a class is full, which happens later.
    found = read_embedded()
    assert labels(found.train)[:10].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]
    assert labels(found.test)[:10].tolist() == [9, 2, 1, 1, 6, 1, 4, 6, 5, 7]
    digests = [hashlib.sha256(part.images.tobytes()).hexdigest()[:16] for part in (found.train, found.test)]
    assert digests == ["13e619eeda219042", "96315b1732ab731e"]


def test_licence_and_origin_come_along():
    folder = embedded_folder()
    assert "MIT" in (folder / "LICENSE").read_text(encoding="utf-8")
    assert "Zalando" in (folder / "LICENSE").read_text(encoding="utf-8")
    assert "1708.07747" in (folder / "ORIGIN.md").read_text(encoding="utf-8")
    assert sum(file.stat().st_size for file in folder.iterdir()) < 9_000_000
