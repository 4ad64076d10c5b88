"""What all tasks share: losses, learning targets, safe augmentation, the choice of the best, inference of the task."""

import copy

import pytest
import torch
from support.registered import pictures, tiny
from support.small_tasks import class_schema, classifier, regressor

from vitrail.data.augment.augmentation import AugmentConfig, MixConfig
from vitrail.data.dataset import Batch
from vitrail.data.targets import NumbersTarget
from vitrail.errors import ConfigError
from vitrail.tasks.classify import ClassifyConfig
from vitrail.tasks.distill import DistillConfig
from vitrail.tasks.mae import MAEConfig
from vitrail.tasks.regress import RegressConfig
from vitrail.tasks.task import Task, infer

CLASSES = ("a", "b", "c", "d", "e")


def student(method, name="vit_tiny_patch16", *, multi_label=False):
    task = DistillConfig(method=method).build(tiny(name), class_schema(CLASSES, multi_label=multi_label))
    task.learn_from(tiny())
    return task


TASKS = {
    "classify": lambda: classifier(classes=CLASSES),
    "labels": lambda: classifier(classes=CLASSES, multi_label=True),
    "hard": lambda: student("hard"),
    "soft": lambda: student("soft"),
    "soft labels": lambda: student("soft", multi_label=True),
    "token": lambda: student("token", "deit_tiny_distilled_patch16"),
    "huber": regressor,
    "mse": lambda: regressor(loss="mse"),
    "mae": lambda: MAEConfig(mask=0.5, dim=32, depth=1, num_heads=2).build(tiny(num_classes=0), {}),
}


@pytest.fixture(params=TASKS)
def task(request):
    return TASKS[request.param]()


def batch(task: Task, count: int = 10) -> Batch:
    labels = torch.arange(count) % 5
    values = {"label": labels, "labels": torch.eye(5)[labels], "numbers": torch.randn(count, 2)}
    return Batch(pictures(task.backbone, count), {name: values[name] for name in task.schema}, torch.arange(count))


def test_losses_are_finite_scalars_and_every_parameter_learns(task):
    losses = task.train()(batch(task))
    assert all(value.ndim == 0 and torch.isfinite(value) for value in losses.values())
    assert [name for name, value in losses.items() if value.requires_grad] == ["loss"]
    losses["loss"].backward()
    assert all(parameter.grad is not None for parameter in task.parameters())


def test_losses_of_half_precision_are_in_full(task):
    with torch.autocast("cpu", torch.bfloat16):
        assert task.train()(batch(task))["loss"].dtype == torch.float32


def test_mixed_targets_are_taken(task):
    given = batch(task)
    partner, share = torch.arange(10) ^ 1, torch.rand(10, 1)
    targets = {name: task.schema[name].mix(values, partner, share) for name, values in given.targets.items()}
    assert torch.isfinite(task.loss(given._replace(targets=targets))["loss"])


def test_weights_go_through_a_state_dict(task):
    other = copy.deepcopy(task)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(task.state_dict())
    images = pictures(task.backbone)
    torch.testing.assert_close(other.eval().outputs(images), task.eval().outputs(images))


def test_the_task_that_a_schema_suggests():
    assert infer(class_schema(CLASSES)) is ClassifyConfig
    assert infer(class_schema(CLASSES, multi_label=True)) is ClassifyConfig
    assert infer({"numbers": NumbersTarget(names=("x",))}) is RegressConfig
    with pytest.raises(ConfigError, match=r"--label.*mae"):
        infer({})


def test_a_task_takes_the_targets_that_it_learns_from():
    numbers = {"numbers": NumbersTarget(names=("x",))}
    both = {**class_schema(CLASSES), **numbers}
    assert RegressConfig().learns(both) == numbers
    assert ClassifyConfig().learns(both) == class_schema(CLASSES)
    assert MAEConfig().learns(both) == {}
    with pytest.raises(ConfigError, match="--label"):
        RegressConfig().learns(class_schema(CLASSES))
    with pytest.raises(ConfigError, match="class"):
        ClassifyConfig().learns({})


@pytest.mark.parametrize(
    ("safe", "flip", "crop", "operations", "cutmix"),
    [
        ((), False, "none", 0, 0.0),
        (("flip",), True, "none", 0, 0.0),
        (("crop",), False, "shift", 2, 1.0),
        (("flip", "crop"), True, "shift", 2, 1.0),
    ],
)
def test_augmentation_that_may_falsify_a_number_is_off_unless_declared_safe(safe, flip, crop, operations, cutmix):
    augment, mix = AugmentConfig(crop="shift", randaugment=2), MixConfig(mixup=0.2, cutmix=1.0)
    schema = {"numbers": NumbersTarget(names=("x",))}
    found, augment, mix, notes = RegressConfig(safe=safe).adapt(schema, augment, mix)
    assert found == {"numbers": NumbersTarget(names=("x",), safe=safe)}
    assert (augment.flip, augment.crop, augment.randaugment, mix.cutmix) == (flip, crop, operations, cutmix)
    assert mix.mixup == 0.2
    assert len(notes) == (not flip) + 2 * (crop == "none")


def test_classes_survive_every_augmentation():
    augment, mix = AugmentConfig(randaugment=2), MixConfig(cutmix=1.0)
    schema = class_schema(CLASSES)
    assert ClassifyConfig().adapt(schema, augment, mix) == (schema, augment, mix, [])


def test_the_best_and_between_equals_the_likelier():
    task = classifier()
    assert task.is_better({"accuracy": 0.5, "nll": 9.0}, {"accuracy": 0.4, "nll": 1.0})
    assert task.is_better({"accuracy": 0.5, "nll": 0.9}, {"accuracy": 0.5, "nll": 1.0})
    assert not task.is_better({"accuracy": 0.5, "nll": 1.0}, {"accuracy": 0.5, "nll": 1.0})
    assert not task.is_better({"accuracy": 0.5}, {"accuracy": 0.5, "nll": 1.0})
    assert not regressor().is_better({"r2": 0.5}, {"r2": 0.5})


def test_a_lower_metric_is_better_where_its_description_says_so(monkeypatch):
    task = regressor()
    monkeypatch.setattr(type(task), "best_metric", "rmse")
    assert task.is_better({"rmse": 0.4}, {"rmse": 0.5})
    assert not task.is_better({"rmse": 0.6}, {"rmse": 0.5})


@pytest.mark.parametrize("name", ["huber", "mae"])
def test_a_teacher_is_refused_where_there_is_nothing_to_learn_from_one(name):
    with pytest.raises(ConfigError, match="teacher"):
        TASKS[name]().learn_from(tiny())
