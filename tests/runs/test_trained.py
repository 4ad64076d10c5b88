"""Runs, checkpoints and names opened as trained models."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from support.eight_bits import needs_products
from support.registered import tiny
from support.run_folder import TINY, run_folder
from support.small_data import Made, photos

import vitrail
from vitrail import hardware
from vitrail.data.preprocess import Preprocess
from vitrail.data.targets import ClassTarget, NumbersTarget
from vitrail.errors import CheckpointError, ConfigError, DataError, Notice, ResampledNotice, Unsupported
from vitrail.runs import trained as trained_module
from vitrail.runs.record import Result
from vitrail.runs.trained import TrainedModel, open_model
from vitrail.tasks.classify import Classify, ClassifyConfig

BLACK = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)


def test_a_run_brings_its_task_preprocessing_and_state(tmp_path: Path) -> None:
    result = Result(metrics={"ap": 0.5, "test_ap": 0.25}, state={"thresholds": [0.3, 0.6]})
    run_folder(tmp_path, result, multi_label=True, source="pets/")
    trained = open_model(tmp_path)
    assert trained.task.schema["labels"].classes == ("cat", "dog")
    assert trained.task.state()["thresholds"] == pytest.approx([0.3, 0.6])
    torch.testing.assert_close(trained.preprocess(BLACK)[0, :, 0, 0], torch.tensor([-0.2, -0.4, -0.6]))
    assert (trained.preprocess_known, trained.record is None, trained.result) == (True, False, result)
    assert "trained on pets/, test AP 0.2500" in trained.about
    assert repr(trained) == f"TrainedModel({trained.about})"
    assert not trained.task.training


def test_a_plain_checkpoint_classifies_by_numbers_with_the_usual_preprocessing(tmp_path: Path) -> None:
    vitrail.save(vitrail.create("vit32_small", **TINY), tmp_path)
    trained = open_model(tmp_path)
    assert trained.task.schema["label"].classes == ("0", "1")
    assert trained.backbone.labels is None
    assert not trained.preprocess_known
    torch.testing.assert_close(trained.preprocess(BLACK + 255), torch.ones(1, 3, 32, 32))


def test_preprocessing_is_what_the_files_beside_the_weights_tell(tmp_path: Path) -> None:
    vitrail.save(tiny(), tmp_path)
    told = {"image_mean": [0.2] * 3, "image_std": [0.5] * 3, "size": {"height": 24, "width": 16}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(told))
    trained = open_model(tmp_path)
    assert trained.preprocess_known
    grey = torch.full((1, 3, 24, 16), 51, dtype=torch.uint8)  # a fifth of the way from black to white
    torch.testing.assert_close(trained.preprocess(grey), torch.zeros(1, 3, 24, 16))


def test_a_name_gives_the_same_random_weights_and_leaves_the_generator_alone() -> None:
    state = torch.random.get_rng_state()
    with pytest.warns(Notice, match="random"):
        first, again = (open_model("levit_128s").backbone.state_dict() for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(again[name], values) for name, values in first.items())


def test_another_size(tmp_path: Path) -> None:
    vitrail.save(tiny(), tmp_path / "model")
    with pytest.warns(ResampledNotice):
        opened = open_model(tmp_path / "model", image_size=(48, 32))
    assert opened.preprocess(torch.zeros(1, 3, 9, 9, dtype=torch.uint8)).shape == (1, 3, 48, 32)
    with pytest.warns(Notice, match="random"):
        assert open_model("vit32_small", image_size=64).preprocess.image_size == (64, 64)


def test_a_model_without_a_head_gives_no_answers(tmp_path: Path) -> None:
    vitrail.save(tiny(num_classes=0), tmp_path)
    trained = open_model(tmp_path)
    assert trained.head is None
    assert "M parameters" in trained.about
    with pytest.raises(ConfigError, match="fine-tune"):
        trained.predict(BLACK[0])


def test_outputs_are_those_of_the_task_in_evaluation_mode(tmp_path: Path) -> None:
    trained = open_model(run_folder(tmp_path))
    trained.task.train()
    found = trained.outputs(BLACK)["logits"]
    assert trained.task.training
    trained.task.eval()
    with torch.no_grad():
        torch.testing.assert_close(found, trained.backbone(trained.preprocess(BLACK)))


def test_any_kind_of_image_has_the_same_answer(tmp_path: Path) -> None:
    trained = open_model(run_folder(tmp_path))
    image = torch.randint(0, 256, (3, 40, 50), dtype=torch.uint8)
    array = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
    first, second = trained.predict([image, array])
    assert first.answer == second.answer
    assert [found.answer for found in trained.predict(image[None].expand(3, -1, -1, -1))] == [first.answer] * 3


def test_evaluation_matches_classes_by_name(tmp_path: Path) -> None:
    trained = open_model(run_folder(tmp_path))
    pets = photos(20)
    data = Made(pets.array, pets.targets, {"label": ClassTarget(classes=("dog", "cat"))})
    said = torch.tensor([trained.predict(image)[0].answer.candidates[0].label == "dog" for image in pets.array])
    accuracy = (said == (pets.targets["label"] == 0)).float().mean().item()
    assert trained.evaluate(data).metrics["accuracy"] == pytest.approx(accuracy)
    numbers = Made(pets.array, {"numbers": torch.rand(20, 1)}, {"numbers": NumbersTarget(names=("age",))})
    with pytest.raises(DataError, match="classes"):
        trained.evaluate(numbers)


def test_a_tool_that_is_asked_for_as_a_method() -> None:
    trained = open_model()
    for name in trained_module.TOOLS:
        assert callable(getattr(vitrail, name))
        with pytest.raises(AttributeError, match=f"vitrail.{name}"):
            getattr(trained, name)
    with pytest.raises(AttributeError, match=r"'explains'$"):
        _ = trained.explains
    assert copy.copy(trained).task is trained.task


def test_a_misspelt_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="packaged"):
        open_model("packged")


@needs_products
def test_fewer_bits_are_those_of_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = open_model(run_folder(tmp_path))
    before = {name: values.clone() for name, values in trained.backbone.state_dict().items()}
    with pytest.raises(Unsupported, match="fp8"):
        trained.predict(BLACK[0], precision="fp8")
    monkeypatch.setattr(hardware, "fp8_works", lambda _: True)
    monkeypatch.setattr(hardware, "bf16_works", lambda: True)
    assert trained.in_precision("float32") is trained
    exact = trained.outputs(BLACK)["logits"]
    for precision in ("bf16", "fp8"):
        faster = trained.in_precision(precision)
        assert faster.exact is trained
        assert faster.task.backbone is faster.backbone
        found = faster.outputs(BLACK)["logits"]
        assert found.dtype == torch.float32
        assert 0 < (found - exact).norm() / exact.norm() < 0.1
        assert trained.predict(BLACK[0], precision=precision)[0].answer == faster.predict(BLACK[0])[0].answer
        assert faster.in_precision("float32") is trained
        assert torch.equal(faster.in_precision(precision).outputs(BLACK)["logits"], found)
    after = trained.backbone.state_dict()
    assert all(torch.equal(after[name], values) for name, values in before.items())


def test_evaluation_in_fewer_bits_says_how_often_the_answer_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = open_model(run_folder(tmp_path))
    monkeypatch.setattr(hardware, "bf16_works", lambda: True)
    pets = photos(20)
    data = Made(pets.array, pets.targets, {"label": ClassTarget(classes=("dog", "cat"))})
    said = [
        [found.answer.candidates[0].label for found in trained.predict(list(pets.array), precision=precision)]
        for precision in ("float32", "bf16")
    ]
    found = trained.evaluate(data, precision="bf16", batch_size=8)
    assert found.same == (sum(one == other for one, other in zip(*said, strict=True)), 20)
    assert "same answer" in found.report().to_json()
    assert trained.evaluate(data).same is None


class Beside(Classify):
    """A classifier with a layer of its own after the model."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)
        self.scale = torch.nn.Linear(self.backbone.config.num_classes, self.backbone.config.num_classes)

    def outputs(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.scale(self.backbone(images))}


def test_parts_beside_the_model_keep_their_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "bf16_works", lambda: True)
    model = tiny()
    target = ClassTarget(classes=tuple(str(number) for number in range(model.config.num_classes)))
    task = Beside(ClassifyConfig(), {"label": target}, model)
    trained = TrainedModel(
        source="test", backbone=model, preprocess=Preprocess(image_size=model.config.image_size), head=task
    )
    faster = trained.in_precision("bf16")
    assert faster.task.scale.weight.dtype == torch.float32
    image = torch.zeros(1, 3, *model.config.image_size, dtype=torch.uint8)
    assert faster.outputs(image)["logits"].isfinite().all()
