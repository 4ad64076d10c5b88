"""Which output is explained, and how outputs become scores."""

import numpy as np
import pytest
import torch
from support.registered import pictures, tiny

from vitrail.data.targets import NumbersTarget
from vitrail.errors import ConfigError
from vitrail.explain.methods.target import Target, targets
from vitrail.tasks.regress import RegressConfig


def test_targets_by_index_name_list_and_prediction() -> None:
    torch.manual_seed(0)
    model = tiny()
    images = pictures(model, 3)
    model.labels = ("cat", "dog", "cow", "elk", "owl")
    assert targets(model, images, 2).indices.tolist() == [2, 2, 2]
    assert targets(model, images, "elk").indices.tolist() == [3, 3, 3]
    assert targets(model, images, "4").indices.tolist() == [4, 4, 4]
    assert targets(model, images, ["cat", 1, "owl"]).indices.tolist() == [0, 1, 4]
    assert targets(model, images, torch.tensor([4, 3, 0])).indices.tolist() == [4, 3, 0]
    assert targets(model, images, np.int64(1)).indices.tolist() == [1, 1, 1]  # type: ignore[arg-type]
    assert targets(model, images).indices.tolist() == model(images).argmax(dim=1).tolist()


@pytest.mark.parametrize(
    ("target", "word"),
    [
        ("cta", "did you mean 'cat'"),
        (5, "from 0 to 4"),
        (-1, "-1"),
        ([0, 1], "2 targets for 3 images"),
        (2.5, "float"),
        (torch.rand(3, 5), "list"),  # logits
        (True, "bool"),
    ],
)
def test_an_output_that_does_not_exist(target: object, word: str) -> None:
    model = tiny()
    model.labels = ("cat", "dog", "cow", "elk", "owl")
    with pytest.raises(ConfigError, match=word):
        targets(model, pictures(model, 3), target)  # type: ignore[arg-type]


def test_a_name_for_a_model_without_names() -> None:
    model = tiny()
    with pytest.raises(ConfigError, match="no names"):
        targets(model, pictures(model), "cat")


def test_outputs_and_scores_are_those_of_the_target() -> None:
    torch.manual_seed(0)
    model = tiny()
    images, target = pictures(model), Target(torch.tensor([3, 1]))
    logits = model(images)
    torch.testing.assert_close(target.output(logits), logits[[0, 1], [3, 1]])
    torch.testing.assert_close(target.score(logits), logits.softmax(dim=1)[[0, 1], [3, 1]])
    torch.testing.assert_close(target.repeat(2).output(logits.repeat(2, 1)), logits[[0, 1, 0, 1], [3, 1, 3, 1]])
    assert [one.indices.tolist() for one in target.split(1)] == [[3], [1]]


def test_a_task_names_its_outputs_and_scores_them() -> None:
    torch.manual_seed(0)
    model = tiny(num_classes=2)
    schema = {"numbers": NumbersTarget(names=("age", "height"))}
    task = RegressConfig().build(model, schema).eval()
    images = pictures(model)
    assert targets(task, images).indices.tolist() == [0, 0]
    height = targets(task, images, "height")
    assert height.indices.tolist() == [1, 1]
    outputs = model(images)
    torch.testing.assert_close(height.score(outputs), task.scores(outputs, height.reference)[:, 1])
    with pytest.raises(ConfigError, match="height"):
        targets(task, images, "heigth")
