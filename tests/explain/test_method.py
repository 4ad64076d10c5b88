"""Which class is explained, and the mode of the model meanwhile."""

import numpy as np
import pytest
import torch
from registered import pictures, tiny

from vitrail.errors import ConfigError
from vitrail.explain.method import classes, evaluating, probability, score


def test_classes_by_number_name_list_and_prediction() -> None:
    torch.manual_seed(0)
    model = tiny()
    images = pictures(model, 3)
    model.labels = ("cat", "dog", "cow", "elk", "owl")
    assert classes(model, images, 2).tolist() == [2, 2, 2]
    assert classes(model, images, "elk").tolist() == [3, 3, 3]
    assert classes(model, images, "4").tolist() == [4, 4, 4]
    assert classes(model, images, ["cat", 1, "owl"]).tolist() == [0, 1, 4]
    assert classes(model, images, torch.tensor([4, 3, 0])).tolist() == [4, 3, 0]
    assert classes(model, images, np.int64(1)).tolist() == [1, 1, 1]  # type: ignore[arg-type]
    assert classes(model, images).tolist() == model(images).argmax(dim=1).tolist()


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("cta", "there is no class 'cta'; did you mean 'cat'"),
        (5, "there is no class 5; the model has 5, from 0 to 4"),
        (-1, "there is no class -1"),
        ([0, 1], "there are 2 classes for 3 images"),
        (2.5, "a class is given as a float; give its number, or its name"),
        (torch.rand(3, 5), "a class is given as a list"),  # logits
        (True, "a class is given as a bool"),
    ],
)
def test_a_class_that_is_not_there(target: object, sentence: str) -> None:
    model = tiny()
    model.labels = ("cat", "dog", "cow", "elk", "owl")
    with pytest.raises(ConfigError, match=sentence):
        classes(model, pictures(model, 3), target)  # type: ignore[arg-type]


def test_a_name_where_the_model_knows_none() -> None:
    model = tiny()
    with pytest.raises(ConfigError, match="does not know the names of its 5 classes"):
        classes(model, pictures(model), "cat")


def test_score_and_probability_are_those_of_the_class() -> None:
    torch.manual_seed(0)
    model = tiny()
    images, target = pictures(model), torch.tensor([3, 1])
    logits = model(images)
    torch.testing.assert_close(score(model, images, target), logits[[0, 1], [3, 1]])
    torch.testing.assert_close(probability(model, images, target), logits.softmax(dim=1)[[0, 1], [3, 1]])


def test_evaluating_puts_every_part_back() -> None:
    model = tiny().train()
    model.blocks[0].eval()
    before = [module.training for module in model.modules()]
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == before
