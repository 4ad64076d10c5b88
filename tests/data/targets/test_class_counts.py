"""Images per class: messages about classes that are lost, missing, uneven or rare."""

from vitrail.data.targets.class_counts import audit_classes, gap, lost_classes


def test_lost_classes():
    assert lost_classes("abc", [3, 0, 2], [0, 0, 1]) == ("a",)
    assert lost_classes("abc", [3, 0, 2], [1, 0, 1]) == ()


def test_gaps():
    classes = ("cat", "dog", "Dog")
    assert "'dog' of photos has no image in the train split" in gap(
        classes, "train", "photos", ["dog"], in_train=[5, 0, 5]
    )
    assert "'Dog'" in gap(classes, "train", "photos", ["dog"], in_train=[5, 0, 5])  # most likely the same class
    assert "only one image" in gap(classes, "val", "photos", ["cat"], in_train=[1, 5, 5])
    assert "classes 'cat', 'dog'" in gap(classes, "val", "photos", ["cat", "dog"], in_train=[5, 5, 5])


def test_audit():
    audit = audit_classes(("cat", "dog"), {"train": [300, 9], "val": [3, 0]}, one=True)
    assert audit.sections[0].rows[1] == {"class": "dog", "train": 9, "val": 0, "share": 9 / 309}
    missing, uneven, few = audit.advice
    assert "val" in missing
    assert "'dog'" in missing
    assert "300" in uneven
    assert "Fewer than 10" in few
    assert audit_classes(("cat", "dog"), {"train": [20, 20]}, one=True).advice == []
    assert any("only one class" in advice for advice in audit_classes(("cat",), {"train": [20]}, one=True).advice)
    assert audit_classes(("cat",), {"train": [20]}, one=False).advice == []
    assert audit_classes(("cat",), {"train": [0]}, one=False).sections[0].rows[0]["share"] == 0
