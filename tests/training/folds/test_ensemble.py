"""The ensemble of folds: one run's folder for all tools, the mean of its members, and one ONNX file."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.registered import tiny
from support.small_data import photos
from support.small_tasks import class_schema, regressor

from vitrail.api import open_explainer
from vitrail.data.preprocess import Preprocess
from vitrail.deploy.artefact.card import Card
from vitrail.deploy.artefact.engine import servable
from vitrail.deploy.artefact.export import to_program, write_onnx
from vitrail.deploy.artefact.opening import open_engine
from vitrail.errors import DataError, Unsupported
from vitrail.models.checkpoint.vitrail import describe_model
from vitrail.runs.record import Record
from vitrail.runs.trained import TrainedModel, open_model
from vitrail.tasks.classify import ClassifyConfig
from vitrail.tasks.classify.goal import RecallGoal
from vitrail.training.folds.ensemble import write_ensemble
from vitrail.training.folds.out_of_fold import Fold, pool

NAMES = ("dark", "light")


def made_fold(number: int, *, multi_label: bool, **options: Any) -> Fold:
    """A model with weights and a temperature of its own, and outputs for images that it did not see."""
    torch.manual_seed(number)
    backbone = tiny(num_classes=2)
    torch.nn.init.normal_(backbone.head.weight)
    schema = class_schema(NAMES, multi_label=multi_label)
    config = ClassifyConfig(**options)
    task = config.build(backbone, schema).eval()
    if not multi_label:
        task.load_state({"temperature": {"temperature": 1.0 + number}})
    size, channels = backbone.config.image_size, backbone.config.channels
    preprocess = Preprocess(image_size=size, channels=channels)
    plain = {name: value for name, value in describe_model(backbone).items() if name in ("family", "config")}
    record = Record(
        recipe={"seed": 0, "model": "tiny"},
        model=plain,
        task=config,
        schema=schema,
        preprocess=preprocess,
        source="demo",
    )
    model = TrainedModel(source=f"fold-{number}", backbone=backbone, preprocess=preprocess, head=task, record=record)
    draw = torch.Generator().manual_seed(number)
    labels = torch.randint(0, 2, (20,), generator=draw)
    truth = torch.eye(2)[labels] if multi_label else labels
    logits = torch.randn(20, 2, generator=draw) + torch.eye(2)[labels]
    found = Fold(number, model, photos(20))
    found.add({"logits": logits}, {task.field: truth}, list(range(20)))
    return found


def ensemble(folder: Path, *, multi_label: bool = False, **options: Any) -> tuple[TrainedModel, list[Fold]]:
    folds = [made_fold(number, multi_label=multi_label, **options) for number in range(3)]
    folder.mkdir()
    return write_ensemble(folder, folds, pool(folds)), folds


@pytest.mark.parametrize("multi_label", [False, True])
def test_it_answers_with_the_mean_of_its_members(tmp_path: Path, multi_label: bool) -> None:
    model, folds = ensemble(tmp_path / "run", multi_label=multi_label)
    shape = (4, model.preprocess.channels, *model.preprocess.image_size)
    images = torch.randint(0, 256, shape, dtype=torch.uint8)
    each = [fold.model.task.scores(fold.model.outputs(images)["logits"]) for fold in folds]
    for one in (model, open_model(tmp_path / "run")):
        torch.testing.assert_close(one.task.scores(one.outputs(images)["logits"]), torch.stack(each).mean(dim=0))
    count = sum(parameter.numel() for parameter in folds[0].model.task.parameters())
    assert sum(parameter.numel() for parameter in model.task.parameters()) == 3 * count
    assert "an ensemble of 3" in model.about
    assert "out-of-fold" in model.about


@pytest.mark.parametrize("group", [None, "hash"])
def test_data_that_cannot_be_opened_any_more_are_an_error(tmp_path: Path, group: str | None) -> None:
    folds = [made_fold(number, multi_label=False) for number in range(2)]
    record = folds[0].model.record
    assert isinstance(record, Record)
    gone = replace(record, source=str(tmp_path / "gone"), wanted=record.wanted._replace(group=group))
    folds[0].model = replace(folds[0].model, record=gone)
    with pytest.raises(DataError, match="gone"):
        write_ensemble(tmp_path, folds, pool(folds))


def test_it_takes_its_decision_from_all_folds_together(tmp_path: Path) -> None:
    model, folds = ensemble(tmp_path / "run", goal=RecallGoal(of="light", at_least=1.0))
    assert model.task.decision.offsets
    held = [fold.held_out() for fold in folds]
    joined = [one.task.probabilities(one.outputs["logits"]).log() for one in held]
    labels = torch.cat([one.targets["label"] for one in held])
    assert bool((model.task.choose(torch.cat(joined))[labels == 1] == 1).all())


def test_thresholds_of_labels_come_from_all_folds_together(tmp_path: Path) -> None:
    model, _ = ensemble(tmp_path / "run", multi_label=True)
    assert model.task.thresholds.tolist() != [0.5, 0.5]


def test_other_tasks_have_no_ensemble() -> None:
    task = regressor()
    assert task.config.ensemble(3) is None
    with pytest.raises(Unsupported, match="joined"):
        task.join([])


def test_its_graph_holds_all_members(tmp_path: Path) -> None:
    model, _ = ensemble(tmp_path / "run", goal=RecallGoal(of="light", at_least=1.0))
    program = to_program(servable(model))
    images = torch.randint(0, 256, (2, 40, 30, model.preprocess.channels), dtype=torch.uint8)
    found, wanted = program.module()(images), servable(model)(images)
    assert set(found) == {"logits", "probabilities", "chosen"}
    for name in found:
        torch.testing.assert_close(found[name], wanted[name])


@pytest.mark.slow  # ONNX takes torch some seconds a member
def test_one_onnx_file_has_all_members(tmp_path: Path) -> None:
    model, _ = ensemble(tmp_path / "run")
    file = write_onnx(to_program(servable(model)), Card.of(model), tmp_path / "model.onnx")
    engine = open_engine(file, threads=1)
    shape = (3, model.preprocess.channels, *model.preprocess.image_size)
    images = torch.randint(0, 256, shape, dtype=torch.uint8)
    expected = model.task.scores(model.outputs(images)["logits"])
    torch.testing.assert_close(engine.outputs(images)["probabilities"], expected, atol=1e-4, rtol=1e-3)
    assert engine.task.state() == model.task.state()
    assert engine.predict(images[0])[0].answer.candidates[0].label in NAMES


def test_a_service_opens_it_without_explanations(tmp_path: Path) -> None:
    ensemble(tmp_path / "run")
    assert open_explainer(str(tmp_path / "run")) is None
