"""What a recipe may say, and how it is changed."""

from dataclasses import fields

import pytest

from vitrail.config import to_dict
from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError
from vitrail.models.registry import create
from vitrail.tasks.classify import ClassifyConfig
from vitrail.training.config import _ELSEWHERE, OptimiserConfig, TrainConfig, change


@pytest.mark.parametrize(("foreign", "path"), _ELSEWHERE.items())
def test_names_of_elsewhere_lead_to_keys_that_there_are(foreign: str, path: str) -> None:
    assert foreign not in {field.name for field in fields(TrainConfig)}
    first, _, last = path.partition(".")
    parts = {"options": create("vit32_small").config, "task": ClassifyConfig(), "preprocess": Preprocess()}
    inside = parts.get(first, getattr(TrainConfig(), first))
    assert not last or last in {field.name for field in fields(inside)}


def test_nested_changes_keep_the_rest() -> None:
    config = change(TrainConfig(), {"epochs": 3, "optimiser": {"lr": 1}, "options": {"depth": 2}})
    assert config.optimiser == OptimiserConfig(lr=1.0)
    assert change(config, {"options": {"dim": 64}}).options == {"depth": 2, "dim": 64}
    assert config.epochs == 3


def test_plain_values_and_back() -> None:
    config = change(
        TrainConfig(),
        {"image_size": 28, "preprocess": {"mean": [0.5]}, "task": "regress", "mix": {"mixup": 0.1}, "ema": 0.9},
    )
    assert change(TrainConfig(), to_dict(config)) == config


def test_fp32_is_float32_in_every_file() -> None:
    config = change(TrainConfig(), {"precision": "fp32"})
    assert config.precision == "float32"
    assert config == change(TrainConfig(), {"precision": "float32"})
    assert change(config, to_dict(config)) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochz": 3}, "epochz is not an option of TrainConfig; did you mean 'epochs'?"),
        ({"optimiser": {"lrr": 3}}, "optimiser.lrr is not an option of OptimiserConfig; did you mean 'lr'?"),
        ({"learning_rate": 1e-3}, "learning_rate is not an option of TrainConfig; here that is optimiser.lr"),
        ({"optimiser": {"wd": 0}}, "optimiser.wd is not an option of OptimiserConfig; here that is optimiser.weight"),
        ({"crop": "shift"}, "crop is not an option of TrainConfig; here that is augment.crop"),
        ({"kind": "muon"}, "kind is not an option of TrainConfig; here that is optimiser.kind"),
        ({"augment": {"colour": 2.0}}, "colour is 2.0; it must be"),
        ({"optimiser": 3}, "optimiser is 3; .* mapping of options: .*optimiser.lr"),
        ({"options": [1]}, "options is .* it must be a mapping of options"),
        ({"epochs": 0}, "epochs is 0; it must be 1 or more"),
        ({"epochs": "ten"}, "epochs is 'ten'"),
        ({"precision": "bf61"}, "precision is 'bf61'; did you mean 'bf16'?"),
        ({"precision": ["fp32"]}, r"precision is \['fp32'\]; known: auto, bf16, float32, fp16, fp8"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?").replace("(", r"\(")):
        change(TrainConfig(), changes)
