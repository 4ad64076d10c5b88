"""Evaluation: the same numbers as by hand, examples, and a report of them."""

import json
from dataclasses import replace

import pytest
import torch
from support.registered import tiny
from support.small_tasks import CLASSES, class_schema, classifier

from vitrail.data.feeds.batches import Batches
from vitrail.data.feeds.packing import Packed
from vitrail.data.preprocess import Preprocess
from vitrail.errors import DataError
from vitrail.report import Report
from vitrail.report.intervals import wilson
from vitrail.runs.evaluate import Evaluation, evaluate, evaluate_model, numbers
from vitrail.runs.trained import TrainedModel
from vitrail.tasks.mae import MAEConfig
from vitrail.tasks.task import Task

COUNT = 23
SIZE = (24, 16)


def packed(*, multi_label: bool = False, count: int = COUNT) -> Packed:
    labels = torch.arange(count) % 5
    schema = class_schema(multi_label=multi_label)
    (field,) = schema
    return Packed(
        images=torch.randint(0, 256, (count, 3, *SIZE), dtype=torch.uint8),
        targets={field: torch.eye(5)[labels] if multi_label else labels},
        ids=torch.arange(count),
        sizes=torch.tensor([SIZE] * count, dtype=torch.int32),
        schema=schema,
        name="zoo",
        stored=Preprocess(image_size=SIZE),
        skipped=(("x.jpg", "broken"),),
    )


def feed(data: Packed) -> Batches:
    return Batches(data, batch_size=4, seed=0, shuffle=False, device="cpu")


def opened(task: Task, **options) -> TrainedModel:
    preprocess = Preprocess(image_size=SIZE, **options)
    return TrainedModel(source="test", backbone=task.backbone, preprocess=preprocess, head=task)


def model_of(*, multi_label: bool = False) -> TrainedModel:
    return opened(classifier(tiny(image_size=SIZE), multi_label=multi_label))


def evaluated(model: TrainedModel, data: Packed) -> Evaluation:
    return evaluate_model(model, feed(data))


def test_metrics_are_those_of_one_big_batch():
    model, data = model_of(), packed()
    model.task.train()
    found = evaluated(model, data)
    assert model.task.training
    model.task.eval()
    with torch.no_grad():
        said = model.task.outputs(model.preprocess(data.images))["logits"].argmax(dim=1)
    labels = data.targets["label"]
    assert found.metrics["accuracy"] == pytest.approx((said == labels).float().mean().item())
    assert found.metrics["images"] == COUNT
    assert found.results["confusion"][labels[0], said[0]] > 0
    assert found.seconds > found.waited > 0
    assert found.outputs["logits"].shape == (COUNT, 5)
    assert torch.equal(found.targets["label"], labels)
    assert "of 23 images" in repr(found)


def test_images_that_are_stored_otherwise_are_fitted_first():
    model = model_of()
    other = replace(packed(), stored=Preprocess(image_size=SIZE, resize="squash"))
    expected = model.task.eval().outputs(model.preprocess(other.images))["logits"]
    torch.testing.assert_close(evaluated(model, other).outputs["logits"], expected)


def test_the_report_has_all_of_it():
    model, data = model_of(), packed()
    found = evaluated(model, data)
    report, results = found.report(), found.results
    assert report.title == "zoo: 23 images"
    low, high = wilson(results["accuracy"], COUNT)
    shown = report["Result"].values
    assert (shown["accuracy"], shown["accuracy, 95 % low"], shown["accuracy, 95 % high"]) == (
        results["accuracy"],
        low,
        high,
    )
    rows = {row["class"]: row for row in report["Per class"].rows}
    assert [rows[name]["images"] for name in CLASSES] == [5, 5, 5, 4, 4]
    assert rows["dog"]["recall"] == results["recall"][3]
    assert report["Speed"].values["images left out as broken"] == 1
    assert report["Images left out as broken"].rows == [{"image": "x.jpg", "reason": "broken"}]
    assert Report.from_json(report.to_json()).to_json() == report.to_json()
    assert "<table" in report.to_html()


def test_several_labels_have_their_own_report():
    model, data = model_of(multi_label=True), packed(multi_label=True)
    data.targets["labels"][:, 2] = 1
    report = evaluated(model, data).report()
    assert "cat" in report["Not measured"].text
    row = next(row for row in report["Per class"].rows if row["class"] == "cat")
    assert (row["AP"], row["images"], row["threshold"]) == (None, COUNT, 0.5)
    assert "NaN" not in json.dumps(json.loads(report.to_json()))


def test_examples_are_the_worst_first_and_one_of_each_truth():
    found = evaluated(model_of(), packed())
    errors = [example.error for example in found.worst]
    assert errors == sorted(errors, reverse=True)
    assert all(error > 0 for error in errors)
    assert [example.truth for example in found.first] == list(CLASSES)
    assert found.first[0].name == "image 0"
    assert found.first[0].image.shape == (3, *SIZE)
    assert found.first[0].answer.candidates


def test_pictures_of_the_worst_are_for_pages() -> None:
    found = evaluated(model_of(), packed())
    plain, page = found.report(), found.report(pictures=True)
    titles = {one.title for one in plain.sections}
    assert [one.title for one in page.sections if one.title not in titles] == ["Worst mistakes"]
    assert "data:image" in page.to_html()
    assert "data:image" not in plain.to_html()


def test_the_first_of_many_broken_images_are_named():
    skipped = tuple((f"{index}.jpg", f"{index}.jpg is empty") for index in range(37))
    report = evaluated(model_of(), replace(packed(), skipped=skipped)).report()
    table = report["Images left out as broken, the first 10 of 37"]
    assert [row["image"] for row in table.rows] == [f"{index}.jpg" for index in range(10)]


def test_a_perfect_model_makes_no_mistakes():
    model, data = model_of(), packed()
    said = model.task.eval().outputs(model.preprocess(data.images))["logits"].argmax(dim=1)
    data.targets["label"].copy_(said)
    found = evaluated(model, data)
    assert found.metrics["accuracy"] == 1
    assert found.worst == ()


def test_lower_precision_is_a_choice():
    model, data = model_of(), packed()
    task = model.task.eval()

    def infer(images):
        return task.outputs(model.preprocess(images))

    half = evaluate(task, feed(data), infer, autocast=lambda: torch.autocast("cpu", torch.bfloat16))
    full = evaluate(task, feed(data), infer)
    assert full.metrics["nll"] != half.metrics["nll"]
    assert half.metrics["nll"] == pytest.approx(full.metrics["nll"], rel=0.1)


def test_a_task_without_answers_has_examples_without_answers():
    task = MAEConfig(mask=0.5, dim=32, depth=1, num_heads=2).build(tiny(image_size=SIZE, num_classes=0), {})
    found = evaluated(opened(task), packed())
    assert all(example.answer is None and example.truth == "" for example in found.first)
    assert len(found.first) == 12
    assert found.report()["Result"]


def test_no_images_are_an_error():
    data = packed(count=5)
    empty = replace(
        data,
        images=data.images[:0],
        targets={"label": data.targets["label"][:0]},
        ids=data.ids[:0],
        sizes=data.sizes[:0],
    )
    with pytest.raises(DataError, match="empty"):
        evaluated(model_of(), empty)


def test_numbers_leaves_tables_out():
    found = numbers({"a": 1, "b": torch.tensor(0.5), "c": torch.zeros(3), "d": "text"})
    assert found == {"a": 1.0, "b": 0.5}
