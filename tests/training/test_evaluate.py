"""Evaluation: the same numbers as by hand, by class, as mistakes, as calibration; and a report of them."""

import json
from dataclasses import replace

import pytest
import torch
from registered import tiny

from vitrail.data.augment import AugmentConfig, Prepare
from vitrail.data.batches import Batches
from vitrail.data.cache import Packed
from vitrail.errors import ConfigError
from vitrail.report import Report
from vitrail.tasks.classify import Classify
from vitrail.training.evaluate import evaluate, measure
from vitrail.training.evidence import interval

CLASSES = ("ant", "bee", "cat", "dog", "elk")
COUNT = 23


def make(multi_label=False, classes=CLASSES):
    task = Classify(tiny(), classes=CLASSES, multi_label=multi_label)
    size = task.backbone.config.image_size
    images = torch.randint(0, 256, (COUNT, 3, *size), dtype=torch.uint8)
    labels = torch.arange(COUNT) % 5
    packed = Packed(
        images=images,
        labels=torch.eye(5)[labels] if multi_label else labels,
        ids=torch.arange(COUNT),
        classes=classes,
        name="zoo",
        skipped=(("x.jpg", "broken"),),
    )
    batches = Batches(packed, batch_size=4, seed=0, shuffle=False, device="cpu")
    return task, batches, Prepare(AugmentConfig(), image_size=size, channels=3)


def test_numbers_are_those_of_one_big_batch():
    task, batches, prepare = make()
    task.train()
    found = measure(task, batches, prepare=prepare)
    assert task.training
    task.eval()
    said = task.outputs(prepare(batches.packed.images)).argmax(dim=1)
    labels = batches.packed.labels
    assert found.results["accuracy"] == pytest.approx((said == labels).float().mean().item())
    assert found.results["images"] == COUNT
    assert found.results["confusion"][labels[0], said[0]] > 0
    assert found.seconds > found.waited > 0
    assert found.images_per_second == pytest.approx(COUNT / found.seconds)


def test_the_report_tells_it_all():
    task, batches, prepare = make()
    report = evaluate(task, batches, prepare=prepare)
    results = measure(task, batches, prepare=prepare).results
    assert report.title == "zoo: 23 images"
    facts = report["Result"].values
    low, high = interval(results["accuracy"], COUNT)
    assert (facts["accuracy"], facts["95 % interval, from"], facts["to"]) == (results["accuracy"], low, high)
    assert facts["calibration error (ECE)"] == results["ece"]
    rows = {row["class"]: row for row in report["By class"].rows}
    assert [rows[name]["images"] for name in CLASSES] == [5, 5, 5, 4, 4]
    assert rows["dog"]["recall"] == results["recall"][3]
    matrix = [[row[name] for name in CLASSES] for row in report["Confusion"].rows]
    assert matrix == results["confusion"].tolist()
    mistakes = report["Mistakes"].rows
    assert sum(row["images"] for row in mistakes) == COUNT - int(results["confusion"].trace())
    assert mistakes[0]["images"] == max(row["images"] for row in mistakes)
    for row in mistakes:
        assert row["images"] == results["confusion"][CLASSES.index(row["is"]), CLASSES.index(row["taken for"])]
    assert sum(row["images"] for row in report["Calibration"].rows) == COUNT
    assert report["Speed"].values["images left out as broken"] == 1
    assert report["Images left out as broken"].rows == [{"image": "x.jpg", "reason": "broken"}]
    assert Report.from_json(report.to_json()).to_json() == report.to_json()
    assert "95 % interval" in str(report)
    assert "<table>" in report.to_html()


def test_several_labels_have_their_own_report():
    task, batches, prepare = make(multi_label=True)
    batches.packed.labels[:, 2] = 1
    report = evaluate(task, batches, prepare=prepare)
    assert 0 < report["Result"].values["average precision, mean"] < 1
    assert "All images have, or none has: cat." in report["Not measured"].text
    row = report["By class"].rows[2]
    assert row["AP"] is None
    assert row["images"] == COUNT
    assert [row["threshold"] for row in report["By class"].rows] == [0.5] * 5
    facts = report["Result"].values
    assert (facts["95 % interval, from"], facts["to"]) == interval(facts["all labels right"], COUNT)
    assert sum(row["labels"] for row in report["Calibration"].rows) == 5 * COUNT
    assert "NaN" not in json.dumps(json.loads(report.to_json()))


def test_the_first_of_many_broken_images_are_named():
    task, batches, prepare = make()
    skipped = tuple((f"{index}.jpg", f"{index}.jpg is empty") for index in range(37))
    batches = Batches(replace(batches.packed, skipped=skipped), batch_size=4, seed=0, shuffle=False, device="cpu")
    table = evaluate(task, batches, prepare=prepare)["Images left out as broken, the first 10 of 37"]
    assert [row["image"] for row in table.rows] == [f"{index}.jpg" for index in range(10)]
    assert table.rows[9]["reason"] == "is empty"


def test_a_plain_model_is_evaluated_by_its_labels():
    task, batches, prepare = make()
    model = task.backbone
    assert evaluate(model, batches, prepare=prepare)["Result"] == evaluate(task, batches, prepare=prepare)["Result"]


def test_a_perfect_model_makes_no_mistakes():
    task, batches, prepare = make()
    said = task.eval().outputs(prepare(batches.packed.images)).argmax(dim=1)
    batches.packed.labels.copy_(said)
    report = evaluate(task, batches, prepare=prepare)
    assert report["Result"].values["accuracy"] == 1
    assert "Mistakes" not in [section.title for section in report.sections]


def test_lower_precision_is_a_choice():
    task, batches, prepare = make()
    full = measure(task, batches, prepare=prepare).results["nll"]
    half = measure(task, batches, prepare=prepare, dtype=torch.bfloat16).results["nll"]
    assert full != half
    assert half == pytest.approx(full, rel=0.1)


def test_other_classes_are_refused():
    task, batches, prepare = make(classes=("ant", "bee", "cow", "dog", "elk"))
    with pytest.raises(ConfigError, match=r"tells 5 classes \(ant, bee, cat, .*images of zoo are of .*cow"):
        evaluate(task, batches, prepare=prepare)
