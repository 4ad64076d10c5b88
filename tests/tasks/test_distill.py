"""Distillation: each loss by hand, and a teacher that is not part of the student."""

import math
from types import SimpleNamespace

import pytest
import torch
from support.registered import pictures, tiny
from support.small_tasks import class_schema
from torch import nn

from vitrail.data.dataset import Batch
from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError, InputError
from vitrail.tasks.distill import DistillConfig, Teacher

CLASSES = ("a", "b", "c", "d", "e")
DEIT = "deit_tiny_distilled_patch16"


class Fixed(nn.Module):
    """Answers with given logits, and remembers what it saw."""

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(torch.as_tensor(logits))
        self.drop = nn.Dropout(0.9)

    def forward(self, images):
        self.seen = images
        return self.drop(self.logits)


def student(model, *, teacher, classes=CLASSES, multi_label=False, state=None, **options):
    """A task that learns from a teacher."""
    task = DistillConfig(**options).build(model, class_schema(classes, multi_label=multi_label))
    task.learn_from(teacher, state=state)
    return task


def seen(mean, std):
    return Preprocess(mean=mean, std=std, channels=len(mean))


def batch(model, labels=(0, 3)):
    return Batch(pictures(model, len(labels)), {"label": torch.tensor(labels)}, torch.arange(len(labels)))


def cross_entropy(logits, labels):
    return sum(-row.log_softmax(0)[label].item() for row, label in zip(logits, labels, strict=True)) / len(labels)


TAUGHT = torch.tensor([[0.0, 2, 0, 1, 0], [1, 0, 0, 0, 3]])


def test_hard_is_a_second_label():
    model = tiny()
    given = batch(model)
    task = student(model, teacher=Fixed(TAUGHT), method="hard", weight=0.25)
    logits = model(given.images).detach()
    expected = 0.75 * cross_entropy(logits, [0, 3]) + 0.25 * cross_entropy(logits, [1, 4])
    found = task.loss(given)
    assert found["loss"].item() == pytest.approx(expected, rel=1e-5)
    assert found["teacher"].item() == pytest.approx(cross_entropy(logits, [1, 4]), rel=1e-5)


def test_soft_is_a_divergence_from_the_teacher():
    model, t = tiny(), 2.5
    given = batch(model)
    task = student(model, teacher=Fixed(TAUGHT), method="soft", weight=0.7, temperature=t)
    logits = model(given.images).detach()
    divergence = 0.0
    for row, taught in zip(logits, TAUGHT, strict=True):
        p, q = (taught / t).softmax(0).tolist(), (row / t).softmax(0).tolist()
        divergence += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)) / 2
    expected = 0.3 * cross_entropy(logits, [0, 3]) + 0.7 * t * t * divergence
    assert task.loss(given)["loss"].item() == pytest.approx(expected, rel=1e-5)


def test_a_student_that_equals_its_teacher_has_nothing_to_learn_from_it():
    model = tiny()
    given = batch(model)
    task = student(model, teacher=Fixed(model(given.images).detach()))
    found = task.loss(given)
    assert found["teacher"].item() == pytest.approx(0, abs=1e-6)
    assert found["agreement"] == 1


def test_token_gives_each_head_its_own_truth():
    model = tiny(DEIT)
    given = batch(model)
    task = student(model, teacher=Fixed(TAUGHT), method="token")
    by_class, by_teacher = (logits.detach() for logits in model.heads(model.features(given.images)))
    expected = (cross_entropy(by_class, [0, 3]) + cross_entropy(by_teacher, [1, 4])) / 2
    found = task.loss(given)
    assert found["loss"].item() == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(task.outputs(given.images)["logits"], (by_class + by_teacher) / 2)
    found["loss"].backward()
    # The gradient of a cross entropy: the mean of what was said, less what was asked for.
    for head, logits, labels in ((model.head, by_class, [0, 3]), (model.distillation_head, by_teacher, [1, 4])):
        pull = (logits.softmax(dim=1) - torch.eye(5)[labels]).mean(dim=0) / 2
        torch.testing.assert_close(head.bias.grad, pull)


def test_smoothing_and_soft_labels_belong_to_the_labels_part():
    model = tiny()
    images, labels, ids = batch(model)
    task = student(model, teacher=Fixed(TAUGHT), weight=0.0, label_smoothing=0.1)
    soft = torch.eye(5)[labels["label"]] * 0.6 + 0.4 / 5
    expected = nn.functional.cross_entropy(model(images), soft, label_smoothing=0.1)
    torch.testing.assert_close(task.loss(Batch(images, {"label": soft}, ids))["loss"], expected)


def test_the_teacher_is_not_part_of_the_student():
    model, teacher = tiny(), tiny(num_classes=5)
    task = student(model, teacher=teacher)
    assert {name.removeprefix("backbone.") for name in task.state_dict()} == set(model.state_dict())
    assert {id(p) for p in task.parameters()} == {id(p) for p in model.parameters()}
    assert not any(module is teacher for module in task.modules())
    task.train()
    assert not teacher.training
    teacher.train()
    task.loss(batch(model))["loss"].backward()
    assert not teacher.training
    assert all(p.grad is None and not p.requires_grad for p in teacher.parameters())
    assert all(p.grad is not None for name, p in model.named_parameters())


def test_a_teacher_has_its_own_size():
    model, teacher = tiny(), tiny(image_size=(16, 16))
    task = student(model, teacher=teacher, method="hard")
    given = batch(model)
    assert given.images.shape[2:] != (16, 16)
    small = nn.functional.interpolate(given.images, size=(16, 16), mode="bicubic", antialias=True)
    torch.testing.assert_close(task.teacher[0](given.images), teacher(small))
    assert torch.isfinite(task.loss(given)["loss"])


def test_a_teacher_has_its_own_normalisation_and_channels():
    pixels = torch.rand(2, 1, 4, 4)
    own = seen((0.4, 0.5, 0.6), (0.2, 0.3, 0.25))
    inner = Fixed(TAUGHT)
    teacher = Teacher(inner, image_size=(8, 8), preprocess=own, student=seen((0.5,), (0.5,)))
    teacher((pixels - 0.5) / 0.5)
    bigger = nn.functional.interpolate(pixels, size=(8, 8), mode="bicubic", antialias=True)
    expected = (bigger - torch.tensor(own.mean).view(1, 3, 1, 1)) / torch.tensor(own.std).view(1, 3, 1, 1)
    torch.testing.assert_close(inner.seen, expected)


def test_a_teacher_in_colour_sees_grey_images():
    teacher = tiny()
    grey = torch.randn(2, 1, *teacher.config.image_size)
    torch.testing.assert_close(Teacher(teacher)(grey), teacher(grey.expand(-1, 3, -1, -1)))


def test_a_teacher_may_answer_with_a_record():
    class Record(Fixed):
        def forward(self, images):
            return SimpleNamespace(logits=self.logits)

    torch.testing.assert_close(Teacher(Record(TAUGHT))(torch.rand(2, 3, 4, 4)), TAUGHT)


def test_a_grey_teacher_sees_colours_as_grey():
    teacher = tiny(channels=1)
    images = torch.rand(2, 3, *teacher.config.image_size)
    own, other = seen((0.3,), (0.2,)), seen((0.5,), (0.25,))
    listened = Teacher(teacher, preprocess=own, student=other)
    grey = (images * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True)
    torch.testing.assert_close(listened((images - 0.5) / 0.25), teacher((grey - 0.3) / 0.2), rtol=1e-4, atol=1e-5)
    with pytest.raises(ConfigError, match="channels"):
        listened(images[:, :2])


def test_classes_are_found_by_their_names():
    teacher = tiny(num_classes=6)
    teacher.labels = ("f", "e", "d", "c", "b", "a")  # another order, and one more
    model = tiny()
    given = batch(model)
    found = student(model, teacher=teacher, method="hard").loss(given)
    named = teacher(given.images).flip(1)[:, :5].argmax(dim=1)
    assert found["teacher"].item() == pytest.approx(cross_entropy(model(given.images).detach(), named), rel=1e-5)
    with pytest.raises(ConfigError, match="'z'"):
        student(model, teacher=teacher, classes=("a", "b", "c", "d", "z"))


# --- several labels an image -----------------------------------------------------------------------------------------

GIVEN = torch.tensor([[1.0, 0, 0, 1, 0], [0, 0, 1, 0, 0]])


def of_several(model, **options):
    teacher = options.pop("teacher", Fixed(TAUGHT))
    return student(model, teacher=teacher, multi_label=True, **options)


def binary(logits, answers):
    """The mean of -log p(answer) over all labels of all images."""
    right = torch.where(answers > 0, logits, -logits)
    return sum(math.log1p(math.exp(-each)) for each in right.flatten().tolist()) / right.numel()


def several(model):
    return Batch(pictures(model, 2), {"labels": GIVEN}, torch.arange(2))


def test_soft_with_several_labels_is_a_divergence_of_each():
    model, t = tiny(), 2.0
    given = several(model)
    logits = model(given.images).detach()
    divergence = 0.0
    for one, other in zip((TAUGHT / t).sigmoid().flatten().tolist(), (logits / t).sigmoid().flatten(), strict=True):
        q = other.item()
        divergence += (one * math.log(one / q) + (1 - one) * math.log((1 - one) / (1 - q))) / 10
    found = of_several(model, weight=0.7, temperature=t).loss(given)
    assert found["teacher"].item() == pytest.approx(t * t * divergence, rel=1e-4)
    assert found["loss"].item() == pytest.approx(0.3 * binary(logits, GIVEN) + 0.7 * t * t * divergence, rel=1e-4)
    assert "accuracy" not in found
    same = of_several(model, teacher=Fixed(logits)).loss(given)
    assert same["teacher"].item() == pytest.approx(0, abs=1e-6)


def test_hard_with_several_labels_asks_for_those_that_the_teacher_gives():
    model = tiny()
    given = several(model)
    logits = model(given.images).detach()
    for thresholds, gives in (
        (None, TAUGHT >= 0),  # from a half on
        ([0.6, 0.6, 0.6, 0.8, 0.6], torch.tensor([0.5, 0.5, 0.5, 1.3, 0.5]) < TAUGHT),
    ):
        task = of_several(model, state={"thresholds": thresholds}, method="hard", weight=0.25)
        found = task.loss(given)
        assert found["teacher"].item() == pytest.approx(binary(logits, gives), rel=1e-5)
        assert found["agreement"].item() == pytest.approx(((logits > 0) == gives).float().mean().item())


def test_token_with_several_labels_gives_each_head_its_own_truth():
    model = tiny(DEIT)
    given = several(model)
    by_class, by_teacher = (logits.detach() for logits in model.heads(model.features(given.images)))
    found = of_several(model, method="token").loss(given)
    expected = (binary(by_class, GIVEN) + binary(by_teacher, TAUGHT >= 0)) / 2
    assert found["loss"].item() == pytest.approx(expected, rel=1e-5)


def test_extreme_logits_of_several_labels_stay_finite():
    model = tiny()
    found = of_several(model, teacher=Fixed(300 * (TAUGHT - 1)), temperature=1.0).loss(several(model))
    found["loss"].backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_learns_the_teacher_in_thirty_steps():
    model = tiny()
    given = batch(model)
    task = student(model, teacher=Fixed(TAUGHT), weight=1.0, temperature=1.0).train()
    optimiser = torch.optim.AdamW(task.parameters(), lr=2e-3)
    first = task.loss(given)["teacher"]
    for _ in range(30):
        optimiser.zero_grad()
        task.loss(given)["loss"].backward()
        optimiser.step()
    assert task.loss(given)["teacher"] < 0.2 * first


def test_a_student_without_a_teacher_does_not_train():
    task = DistillConfig().build(tiny(), class_schema(CLASSES))
    with pytest.raises(ConfigError, match="teacher"):
        task.loss(batch(task.backbone))
    assert task.config.stored().build(tiny(), class_schema(CLASSES)).config.kind == "classify"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "token"}, "needs a model with a distillation head.*ViT has none"),
        ({"weight": 1.5}, "weight is 1.5"),
        ({"temperature": 0.0}, "temperature"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        student(tiny(), teacher=Fixed(TAUGHT), **options)


def test_a_teacher_of_other_classes_is_refused():
    model = tiny()
    with pytest.raises(ConfigError, match="classes"):
        student(model, teacher=Fixed(TAUGHT[:, :4])).loss(batch(model))


def test_half_a_normalisation_is_refused():
    with pytest.raises(ConfigError, match="both"):
        Teacher(Fixed(TAUGHT), preprocess=seen((0.5,), (0.5,)))


def test_a_teacher_without_logits_is_refused():
    with pytest.raises(InputError, match="must give logits"):
        Teacher(nn.Identity())(torch.rand(2, 3, 4, 4))
