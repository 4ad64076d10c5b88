"""Settings: those that differ, once each, and as people write them."""

from dataclasses import replace

from support.run_folder import record

from vitrail.comparison.settings import ABSENT, differing
from vitrail.data.preprocess import Preprocess
from vitrail.models.checkpoint.vitrail import describe_model
from vitrail.models.registry import create


def test_equal_records_differ_in_nothing() -> None:
    assert differing([record(), record()]) == {}


def test_only_what_differs_is_listed() -> None:
    found = differing([record(recipe={"epochs": 3}), record(recipe={"epochs": 5}), record(recipe={"epochs": 5})])
    assert found == {"epochs": ["3", "5", "5"]}


def test_data_weights_and_machine_are_settings() -> None:
    other = replace(record(), start="runs/a", source="photos", environment={"device": "cuda", "cpu": "x"})
    found = differing([record(), other])
    assert found == {"data": [ABSENT, "photos"], "start": [ABSENT, "runs/a"], "machine.device": [ABSENT, "cuda"]}


def test_what_a_run_made_of_its_recipe_is_listed_where_the_recipe_is_the_same() -> None:
    changed = replace(record(), preprocess=Preprocess(image_size=(48, 48)))
    assert "stored preprocess.image_size" in differing([record(), changed])


def test_a_built_model_is_not_listed_beside_its_name() -> None:
    models = [{"family": "vit", "config": {"dim": dim}} for dim in (32, 64)]
    assert differing([replace(record(), model=model) for model in models]) == {"built model.config.dim": ["32", "64"]}
    named = [replace(record(recipe={"options": {"dim": dim}}), model=model) for dim, model in zip((32, 64), models)]  # noqa: B905
    assert list(differing(named)) == ["options.dim"]


def test_how_often_a_run_saves_is_no_setting() -> None:
    recipes = ({"save_every": 1, "keep": 3}, {"save_every": None, "keep": 1})
    assert differing([record(recipe=recipe) for recipe in recipes]) == {}


def test_an_option_that_an_older_run_does_not_know_has_its_default() -> None:
    today = describe_model(create("efficientnet_lite0"))
    older = {**today, "config": {name: value for name, value in today["config"].items() if name != "pool_cells"}}
    assert differing([replace(record(), model=model) for model in (older, today)]) == {}
    cells = {**today, "config": {**today["config"], "pool_levels": True, "pool_cells": 3}}
    found = differing([replace(record(), model=model) for model in (older, cells)])
    assert found["built model.config.pool_cells"] == ["1", "3"]
