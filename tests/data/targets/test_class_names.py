"""Class names to check: similar, composed and misspelt ones are found, others are not."""

import pytest

from vitrail.data.targets.class_names import composed, misspelt, notes_on_similar, similar_names, unknown_classes_error


@pytest.mark.parametrize(
    ("classes", "found"),
    [
        (("Red", "blue", "red"), [("Red", "red")]),
        (("red", " red", "polar bear", "Polar  bear"), [("red", " red"), ("polar bear", "Polar  bear")]),
        (("red", "redder", "polar bear", "polarbear"), []),
    ],
)
def test_names_that_differ_only_in_case_or_spaces(classes, found):
    assert similar_names(classes) == found
    assert len(list(notes_on_similar(classes))) == bool(found)


def test_names_made_of_other_names():
    assert composed(["red", "red short", "short", "red dress", "red red"]) == ["red short"]


CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog")


@pytest.mark.parametrize(
    ("name", "classes", "meant"),
    [
        ("plane", CIFAR, "airplane"),
        ("Birds", CIFAR, "bird"),
        ("DOG", CIFAR, "dog"),
        ("dgo", CIFAR, "dog"),
        ("car", CIFAR, None),
        ("cow", CIFAR, None),
        ("cat", ("Coat",), None),
        ("Coats", ("Coat",), "Coat"),
        ("automobil", CIFAR, "automobile"),
        ("deeer", (), None),
    ],
)
def test_a_typo_is_not_another_word(name, classes, meant):
    assert misspelt(name, classes) == meant


def test_unknown_classes_are_named_with_those_that_are_known():
    message = unknown_classes_error("photos", ["bird", "car", "plane"], CIFAR)
    assert "6 classes" in message
    assert message.endswith("not one of airplane, automobile, bird, cat, deer, dog")
    assert unknown_classes_error("photos", ["cats"], CIFAR).startswith("photos has a class that is not among")
    assert "'cats' ('cat'?)" in unknown_classes_error("photos", ["cats"], CIFAR)
    assert "'cats';" in unknown_classes_error("photos", ["cat", "cats"], CIFAR), (
        "cats cannot be cat, which is there as well"
    )
    assert "'cats' ('cat'?), 'dogs' ('dog'?);" in unknown_classes_error("photos", ["cats", "dogs"], CIFAR)
    assert "'cats', 'shirt';" in unknown_classes_error("photos", ["cats", "shirt"], CIFAR), (
        "these are other things altogether"
    )
    assert unknown_classes_error("photos", ["dog", "bird"], CIFAR) is None
