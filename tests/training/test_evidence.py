"""Evidence: figures worked out by hand, or by scikit-learn, all of one pass; pictures with what is said of them."""

import pytest
import torch
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support
from torch import nn

import vitrail
from vitrail.data.augment import AugmentConfig, Prepare
from vitrail.data.batches import Batches
from vitrail.data.cache import Packed
from vitrail.data.dataset import Batch
from vitrail.errors import DataError
from vitrail.tasks.classify import Classify
from vitrail.tasks.metrics import ClassMeter, LabelMeter
from vitrail.training.evaluate import measure
from vitrail.training.evidence import collect, confusions, interval, left_out, rebuild, views
from vitrail.training.overlay import light

CLASSES = ("cat", "dog", "owl")


class Oracle(nn.Module):
    """A task that reads the answer from the image: its first K pixels are the probabilities."""

    def __init__(self, count: int, *, threshold: float | None = None) -> None:
        super().__init__()
        self.count, self.threshold = count, threshold

    def predict(self, images):
        assert not self.training
        said = images.flatten(1)[:, : self.count]
        if self.threshold is not None:
            return {"outputs": said.logit(), "probabilities": said, "chosen": said >= self.threshold}
        return {"outputs": said.log(), "probabilities": said, "chosen": said == said.amax(dim=1, keepdim=True)}

    def metrics(self):
        return ClassMeter(self.count) if self.threshold is None else LabelMeter([self.threshold] * self.count)


def prepare(images):
    return images.float() / 100


def batches(percent: list[list[int]], labels: torch.Tensor, size: int = 2) -> list[Batch]:
    """Images of 2 x 2 pixels and one channel that hold probabilities in per cent."""
    images = torch.zeros(len(percent), 1, 2, 2, dtype=torch.uint8)
    images.view(len(percent), 4)[:, : len(percent[0])] = torch.tensor(percent, dtype=torch.uint8)
    ids = torch.arange(100, 100 + len(percent))
    return [Batch(*part) for part in zip(images.split(size), labels.split(size), ids.split(size), strict=True)]


SINGLE = batches([[90, 10, 0], [20, 70, 10], [60, 30, 10], [5, 95, 0], [30, 30, 40]], torch.tensor([0, 0, 1, 2, 2]))


@pytest.mark.parametrize(
    ("share", "count", "expected"),
    [(0.5, 100, (0.4038, 0.5962)), (0.0, 10, (0.0, 0.2775)), (1.0, 10, (0.7225, 1.0)), (0.9, 1000, (0.8798, 0.9171))],
)
def test_interval_of_a_share(share, count, expected):
    assert interval(share, count) == pytest.approx(expected, abs=1e-4)


def test_interval_of_nothing_is_refused():
    with pytest.raises(DataError, match="at least one"):
        interval(0.5, 0)


def test_one_label_by_hand():
    found = collect(Oracle(3), SINGLE, prepare=prepare, classes=CLASSES)
    assert found.images == 5
    assert found.confusion.tolist() == [[1, 1, 0], [1, 0, 0], [0, 1, 1]]
    assert found.metrics["accuracy"] == pytest.approx(0.4)
    assert found.intervals["accuracy"] == pytest.approx(interval(0.4, 5))
    assert "top5" not in found.metrics  # of three classes, five are always right
    # Each prediction has a bin of its own: sure by 0.9, 0.7, 0.6, 0.95 and 0.4; the first and the last are right.
    assert found.metrics["ece"] == pytest.approx((0.1 + 0.7 + 0.6 + 0.95 + 0.6) / 5, abs=1e-6)
    assert sum(one.size for one in found.calibration) == 5
    assert found.calibration[14] == pytest.approx((0.95, 0.0, 1))


def test_mistakes_come_surest_first_and_examples_one_a_class():
    task = Oracle(3).train()
    found = collect(task, SINGLE, prepare=prepare, classes=CLASSES, mistakes=2, where="photo {}".format)
    assert task.training
    assert [(one.truth, one.predicted, one.name) for one in found.mistakes] == [
        ("owl", "dog", "photo 103"),
        ("cat", "dog", "photo 101"),
    ]
    assert found.mistakes[0].confidence == pytest.approx(0.95)
    assert torch.equal(found.mistakes[0].image, SINGLE[1].images[1])
    assert [(one.truth, one.name) for one in found.examples] == [
        ("cat", "photo 100"),
        ("dog", "photo 102"),
        ("owl", "photo 103"),
    ]
    assert len(collect(task, SINGLE, prepare=prepare, classes=CLASSES, examples=2).examples) == 2


def test_figures_by_class_are_those_of_scikit_learn():
    percent = torch.rand(200, 4).argsort(dim=1) * 20 + torch.randint(1, 20, (200, 1))  # no two are equal
    labels = torch.randint(0, 4, (200,))
    found = collect(Oracle(4), batches(percent.tolist(), labels, 64), prepare=prepare, classes=tuple("abcd"))
    said = percent.argmax(dim=1)
    assert found.metrics["accuracy"] == pytest.approx((said == labels).float().mean().item())
    assert found.confusion.tolist() == confusion_matrix(labels, said).tolist()
    peer = precision_recall_fscore_support(labels, said)
    for row, values in zip(found.per_class, zip(*peer, strict=True), strict=True):
        assert (row["precision"], row["recall"], row["F1"], row["images"]) == pytest.approx(values)


def test_top_five_and_a_class_without_images():
    percent = [[40, 20, 15, 10, 8, 7, 0]]
    images = torch.zeros(1, 1, 2, 4, dtype=torch.uint8)
    images.view(1, 8)[:, :7] = torch.tensor(percent)
    for label, right in ((4, 1.0), (5, 0.0)):
        batch = Batch(images, torch.tensor([label]), torch.tensor([0]))
        found = collect(Oracle(7), [batch], prepare=prepare, classes=tuple("abcdefg"))
        assert found.metrics["top5"] == right
        assert found.per_class[1]["recall"] is None


def test_several_labels():
    labels = torch.tensor([[1.0, 0, 1], [0, 0, 0], [0, 1, 0]])
    data = batches([[90, 20, 80], [10, 10, 70], [5, 2, 10]], labels)
    found = collect(Oracle(3, threshold=0.5), data, prepare=prepare, classes=CLASSES)
    assert found.confusion is None
    assert found.metrics["exact"] == pytest.approx(1 / 3)
    assert found.metrics["label_accuracy"] == pytest.approx(7 / 9)
    assert [(one.truth, one.predicted) for one in found.mistakes] == [("dog", "none"), ("none", "owl")]
    assert found.mistakes[0].confidence == pytest.approx(0.98)
    assert [row["recall"] for row in found.per_class] == [1.0, 0.0, 1.0]
    assert [one.truth for one in found.examples] == ["cat, owl", "dog", "cat, owl"]
    assert [row["AP"] for row in found.per_class] == [1.0, 1 / 3, 1.0]
    assert [row["AUC"] for row in found.per_class] == [1.0, 0.0, 1.0]
    assert [row["threshold"] for row in found.per_class] == [0.5] * 3
    assert found.intervals == {"exact": interval(1 / 3, 3)}
    strict = collect(Oracle(3, threshold=0.75), data, prepare=prepare, classes=CLASSES)
    assert [(one.truth, one.predicted) for one in strict.mistakes] == [("dog", "none")]


@pytest.mark.parametrize("multi_label", [False, True])
def test_figures_are_those_of_an_evaluation(multi_label):
    model, count = tiny(), 26
    task = Classify(
        model, classes=CLASSES, multi_label=multi_label, thresholds=[0.4, 0.5, 0.6] if multi_label else None
    )
    images = torch.randint(0, 256, (count, 3, 16, 24), dtype=torch.uint8)
    labels = (torch.rand(count, 3) < 0.5).float() if multi_label else torch.arange(count) % 3
    packed = Packed(images=images, labels=labels, ids=torch.arange(count), classes=CLASSES, name="zoo", skipped=())
    feed = Batches(packed, batch_size=8, seed=0, shuffle=False, device="cpu")
    found = collect(task, feed.epoch(0), prepare=prepare, classes=CLASSES)
    evaluated = measure(task, feed, prepare=prepare).results
    assert found.metrics == {name: evaluated[name] for name in found.metrics}
    assert set(found.metrics) >= ({"ap", "auc", "f1", "exact", "ece"} if multi_label else {"balanced_accuracy", "nll"})
    share = found.metrics["exact" if multi_label else "accuracy"]
    assert len(found.mistakes) == min(24, round((1 - share) * count))


def test_the_reason_does_not_repeat_the_name():
    table = left_out("Broken", [("a/b.jpg", "a/b.jpg is empty"), ("c.jpg", "no picture")])
    assert [(row["image"], row["reason"]) for row in table.rows] == [("a/b.jpg", "is empty"), ("c.jpg", "no picture")]


def tiny(**changes):
    options = {"image_size": (16, 24), "dim": 32, "depth": 2, "num_heads": 2, "patch": {"size": 8}, "num_classes": 3}
    return vitrail.create("vit_tiny_patch16", **{**options, **changes})


def test_no_images_are_refused():
    with pytest.raises(DataError, match="validation split is empty"):
        collect(Oracle(3), [], prepare=prepare, classes=CLASSES)


def test_worst_confusions():
    rows = confusions(torch.tensor([[5, 3, 0], [0, 9, 1], [2, 3, 5]]), CLASSES, most=3)
    assert [(row["is"], row["taken for"], row["images"]) for row in rows] == [
        ("cat", "dog", 3),
        ("owl", "dog", 3),
        ("owl", "cat", 2),
    ]
    assert rows[0]["of its class"] == 3 / 8
    assert confusions(torch.eye(3, dtype=torch.long), CLASSES) == []


def test_views_pair_pictures_with_maps():
    model = tiny(channels=1, image_size=(16, 16)).eval()
    images = torch.randint(0, 255, (4, 1, 16, 16), dtype=torch.uint8)

    batch = Batch(images, torch.tensor([0, 1, 2, 0]), torch.arange(4))
    found = collect(Classify(model, classes=CLASSES), [batch], prepare=prepare, classes=CLASSES)
    seen = views(model, found.examples, prepare=prepare)
    assert [view.picture.truth for view in seen.shown] == list(CLASSES)
    alone = light(model, prepare(images[1:2]))
    torch.testing.assert_close(seen.shown[1].light, alone.maps[0])
    assert (seen.words, seen.told) == (alone.words, alone.told)
    assert views(model, (), prepare=prepare) is None


class Half(nn.Module):
    """A task that sees the upper half of an image and takes the lower one for white."""

    def predict(self, images):
        assert not self.training
        hidden = torch.tensor([[False, False], [True, True]]).expand(len(images), 2, 2)
        rebuilt = images.clone()
        rebuilt[:, :, 2:] = 9.0  # brighter than white
        return {"rebuilt": rebuilt, "hidden": hidden}


def test_what_was_shown_and_what_was_made_of_it():
    images = torch.randint(0, 256, (3, 1, 4, 4), dtype=torch.uint8)
    task, how = Half().train(), Prepare(AugmentConfig(mean=(0.3,), std=(0.2,)), image_size=(4, 4), channels=1)
    batch = Batch(images, torch.zeros(3), torch.arange(5, 8))
    found = rebuild(task, batch, prepare=how, where="photo {}".format, most=2)
    assert task.training
    assert [one.name for one in found] == ["photo 5", "photo 6"]
    assert all(torch.equal(one.image, image) for one, image in zip(found, images, strict=False))
    assert all(torch.equal(part[:, :2], found[0].image[:, :2]) for part in found[0][:3])
    assert found[0].shown[:, 2:].unique().tolist() == [128]
    assert found[0].rebuilt[:, 2:].unique().tolist() == [255]
