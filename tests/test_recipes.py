"""Every packaged recipe is valid, has a header with its measured result, and builds its model."""

import json
import re
from pathlib import Path

import pytest
import torch

from vitrail.errors import ConfigError
from vitrail.models.registry import create
from vitrail.recipes import list_recipes, read_recipe, recipe_text
from vitrail.training.config import TrainConfig, change
from vitrail.training.task_choice import split_spec

MEASURED = Path(__file__).parents[1] / "benchmarks" / "recipes.json"


@pytest.mark.parametrize("name", list_recipes())
def test_a_recipe_is_valid_and_its_header_has_command_hardware_seed_and_result(name: str) -> None:
    options, _, spec = split_spec(read_recipe(name))
    config = change(TrainConfig(), options)
    kinds = {"mae": "mae", "rtdetr": "detect", "segformer": "segment", "unet": "segment"}
    assert spec.kind == kinds.get(name.rsplit("-", 1)[-1])
    header = recipe_text(name).split("\nmodel:")[0]
    for word in ("command:", "hardware:", "seed:", "result:"):
        assert word in header, word
    assert f"--recipe {name}" in header or name == "demo"
    with torch.device("meta"):
        create(config.model, **config.options)


@pytest.mark.parametrize("name", list_recipes())
def test_a_header_has_each_measured_result(name: str) -> None:
    measured = [row for row in json.loads(MEASURED.read_text()) if row["recipes"].split(" > ")[-1] == name]
    header = recipe_text(name).split("\nmodel:")[0]
    measurements = {f"{100 * row['test']:.2f}" for row in measured}
    assert bool(measurements) != name.endswith("-mae")  # which classifies nothing
    assert measurements <= set(re.findall(r"\d+\.\d\d(?= %| to|, | and)", header))


def test_the_recipes_of_the_package() -> None:
    expected = {
        "demo",
        "fashion-mnist",
        "cifar10-small",
        "cifar10-small-mae",
        "cifar10-conv",
        "cifar10-conv-mae",
        "finetune",
        "bccd-rtdetr",
        "camvid-segformer",
        "camvid-unet",
    }
    assert expected <= set(list_recipes())


def test_a_misspelt_name() -> None:
    with pytest.raises(ConfigError, match=r"'cifar10-smal'.*'cifar10-small'"):
        read_recipe("cifar10-smal")


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("epochs: 3\noptimiser: {lr: 1.0e-4}\n")
    assert change(TrainConfig(), read_recipe(file)).optimiser.lr == 1e-4
    file.write_text("")
    assert read_recipe(file) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs: [", "YAML"),
        ("- epochs", r"list.*mapping"),
        ("epochs: 2024-99-99", "YAML"),
        ("epochs: 1" + "0" * 5_000, "YAML"),
        ("[" * 5_000, "YAML"),
        ("1: 2", "key"),
        ("epochs: &a [*a]", "anchors"),
        (
            "\n".join(["a0: &a0 [x, x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, 12))]),
            "anchors",
        ),
        ("#" * 2_000_000, "bytes"),
    ],
    ids=[
        "unfinished",
        "a list",
        "no such day",
        "endless digits",
        "deep",
        "a number as key",
        "itself",
        "a bomb",
        "large",
    ],
)
def test_files_that_are_not_recipes(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_recipe(file)


def test_a_recipe_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes(b"epochs: \xff")
    with pytest.raises(ConfigError, match="YAML"):
        read_recipe(tmp_path / "mine.yaml")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="recipe"):
        read_recipe(tmp_path / "mine.yaml")


def test_a_misspelt_key_names_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("optimiser: {learning_rate: 1.0}\nepoch: 3\n")
    with pytest.raises(ConfigError, match=r"learning_rate .*Optimi"):
        change(TrainConfig(), read_recipe(file))
