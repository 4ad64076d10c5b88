"""What classifiers of one class and of several labels share."""

import pytest
import torch
from support.registered import pictures
from support.small_tasks import CLASSES, class_schema, classifier

from vitrail.data.dataset import Batch
from vitrail.errors import ConfigError, Unsupported
from vitrail.report import Report
from vitrail.tasks.classify import ClassifyConfig

make = classifier


def batch(task, labels):
    return Batch(pictures(task.backbone, len(labels)), {task.field: labels}, torch.arange(len(labels)))


def test_loss_goes_through_the_backbone_and_forward_is_the_loss():
    task = make()
    given = batch(task, torch.tensor([0, 3]))
    expected = task.losses(task.backbone(given.images), given.targets["label"])
    torch.testing.assert_close(task.loss(given), expected)
    torch.testing.assert_close(task(given), expected)
    torch.testing.assert_close(task.outputs(given.images), {"logits": task.backbone(given.images)})


def test_the_model_learns_the_names():
    assert make().backbone.labels == CLASSES


def test_an_empty_batch_works():
    task = make()
    outputs = task.outputs(pictures(task.backbone, 0))
    assert outputs["logits"].shape == (0, 5)
    task.metrics().update(outputs, {"label": torch.zeros(0, dtype=torch.long)})
    assert task.decode(outputs) == []


@pytest.mark.parametrize("multi_label", [False, True])
def test_results_become_a_lead_intervals_and_sections(multi_label):
    task, labels = make(multi_label=multi_label), torch.arange(20) % 5
    meter = task.metrics()
    meter.update({"logits": torch.randn(20, 5)}, {task.field: torch.eye(5)[labels] if multi_label else labels})
    results = meter.compute()
    assert "of 20 images" in task.lead(results)
    assert task.intervals(results)
    titles = [section.title for section in task.sections(results)]
    assert "Per class" in titles
    assert Report("test", task.sections(results)).to_html()


@pytest.mark.parametrize("multi_label", [False, True])
def test_the_likeliest_class_is_explained(multi_label):
    outputs = {"logits": torch.tensor([[0.0, 3, 1, 0, 0], [5.0, 0, 0, 0, 0]])}
    task = make(multi_label=multi_label)
    assert task.explain_target(outputs, None).tolist() == [1, 0]
    assert task.explain_target(outputs, "dog").tolist() == [3, 3]


def test_uneven_classes_are_judged_by_balanced_accuracy():
    schema, labels = class_schema(("usual", "rare")), torch.tensor([0] * 30 + [1] * 10)
    chosen, notes = ClassifyConfig().decided(schema, {"label": labels})
    assert chosen.best_metric == "balanced_accuracy"
    assert "balanced accuracy" in notes[0]
    assert chosen.build(None, schema).best_metric == "balanced_accuracy"
    assert ClassifyConfig().decided(schema, {"label": labels[20:]}) == (ClassifyConfig(), [])
    asked = ClassifyConfig(best_metric="accuracy")
    assert asked.decided(schema, {"label": labels}) == (asked, [])


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"class_weights": "inverse"}, "1 / the number"),
        ({"class_weights": "effective"}, "effective number"),
        ({"loss": "focal", "focal_gamma": 3.0}, "gamma 3"),
        ({"loss": "logit_adjusted"}, "logarithm"),
    ],
)
def test_what_the_loss_does_about_uneven_classes_is_said(asked, word):
    schema, labels = class_schema(("usual", "rare")), torch.tensor([0] * 10 + [1] * 10)
    _, (note,) = ClassifyConfig(**asked).decided(schema, {"label": labels})
    assert word in note


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("options", [{"loss": "focal"}, {"loss": "logit_adjusted"}, {"class_weights": "inverse"}])
def test_losses_for_uneven_classes_learn(options, multi_label):
    task = classifier(multi_label=multi_label, **options).train()
    labels = torch.tensor([0, 0, 0, 0, 1, 2, 3, 4])
    truth = torch.eye(5)[labels] if multi_label else labels
    task.fit({task.field: truth})
    given = Batch(pictures(task.backbone, 8), {task.field: truth}, torch.arange(8))
    optimiser = torch.optim.AdamW(task.parameters(), lr=2e-3)
    first = task.loss(given)["loss"].item()
    for _ in range(20):
        optimiser.zero_grad()
        task.loss(given)["loss"].backward()
        optimiser.step()
    assert task.loss(given)["loss"].item() < 0.7 * first
    assert set(task.state_dict()) == {f"backbone.{name}" for name in task.backbone.state_dict()}


def test_two_corrections_and_wrong_metrics_are_refused():
    with pytest.raises(ConfigError, match="both"):
        ClassifyConfig(loss="logit_adjusted", class_weights="inverse")
    with pytest.raises(ConfigError, match="effective_beta"):
        ClassifyConfig(effective_beta=1.0)
    with pytest.raises(ConfigError, match="best_metric"):
        classifier(best_metric="ap")
    assert classifier(multi_label=True, best_metric="auc").best_metric == "auc"


@pytest.mark.parametrize("multi_label", [False, True])
def test_an_ensemble_answers_with_the_mean_probability(multi_label):
    task = classifier(multi_label=multi_label, members=3)
    for model in task.others:
        torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(1))
    if not multi_label:
        task.load_state({"members": [1.0, 2.0, 0.5]})
        assert task.state()["members"] == [1.0, 2.0, 0.5]
    images = pictures(task.backbone, 4)
    each = [model(images) for model in (task.backbone, *task.others)]
    heats = (1.0, 2.0, 0.5)
    means = [
        one.sigmoid() if multi_label else (one / heat).softmax(dim=1) for one, heat in zip(each, heats, strict=True)
    ]
    torch.testing.assert_close(task.graph(task.outputs(images))["probabilities"], torch.stack(means).mean(dim=0))
    with pytest.raises(Unsupported, match="fold"):
        task.explained()
    with pytest.raises(ConfigError, match="members"):
        task.fit({task.field: torch.zeros(2, dtype=torch.int64)})


@pytest.mark.parametrize("multi_label", [False, True])
def test_views_are_averaged_by_probability(multi_label):
    task = classifier(multi_label=multi_label)
    if not multi_label:
        task.load_state({"temperature": {"temperature": 2.0}})
    views = [{"logits": torch.randn(3, 5)} for _ in range(2)]
    expected = torch.stack([task.scores(one["logits"]) for one in views]).mean(dim=0)
    torch.testing.assert_close(task.scores(task.average(views)["logits"]), expected)
