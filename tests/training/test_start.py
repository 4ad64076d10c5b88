"""Weights that a run starts from: named ones, those that ship with vitrail, or a refusal."""

import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from support.registered import tiny
from support.run_folder import record
from support.small_data import photos, split

from vitrail.errors import CheckpointError, ConfigError, HeadNotice
from vitrail.models.checkpoint import save
from vitrail.packaged import PHOTOS
from vitrail.profiling.count import sketch
from vitrail.training.config import TrainConfig
from vitrail.training.plan import make_plan
from vitrail.training.start import BORROWED, changes_weights, model_name


@pytest.mark.parametrize(
    ("asked", "rates"), [({"lora": 2}, (3e-3, None)), ({"freeze_until": "blocks.8"}, (5e-4, 0.75))]
)
def test_small_changes_of_nothing_in_particular_are_made_to_the_packaged_model(
    asked: dict[str, object], rates: tuple[float, float | None]
) -> None:
    with pytest.warns(HeadNotice):
        plan = make_plan(split(photos(20)), changes=asked)
    assert changes_weights(plan.config)
    assert (plan.start, plan.config.model) == ("packaged", "vit32_conv")
    assert (plan.config.optimiser.lr, plan.config.optimiser.layer_decay) == rates
    assert plan.config.early_stop == 8  # as the recipe "finetune" has it
    assert BORROWED in plan.notes
    assert any("mean 0.4914" in note for note in plan.notes)


@pytest.mark.parametrize("named", [{"model": "vit32_small"}, {"recipe": {"model": "vit32_small"}}])
def test_lora_of_a_model_that_has_learned_nothing_is_refused(named: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="--from"):
        make_plan(split(photos(20)), **named, changes={"lora": 2})


def test_a_model_is_called_as_its_run_called_it_where_that_is_true(tmp_path: Path) -> None:
    with pytest.warns(HeadNotice):
        assert make_plan(split(photos(20)), start="packaged").config.model == "vit32_conv"
    other = save(tiny("vit32_small"), tmp_path / "other").parent  # of no named size
    assert model_name(tiny("vit32_small"), other) == "vit"
    record().write(other)
    assert model_name(tiny("vit32_small"), other) == "vit"
    assert model_name(sketch("vit32_small", attention={"dropout": 0.0}), other) == "vit32_small"
    (other / "run.json").write_text("{")
    with pytest.raises(CheckpointError, match="damaged"):
        model_name(tiny("vit32_small"), other)


def test_other_recipes_leave_nothing_as_it_is() -> None:
    assert not changes_weights(TrainConfig())


def test_a_probe_reads_cells_where_a_model_can_give_them_and_there_are_few_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def options(start: str | Path = PHOTOS, **changes: object) -> Mapping[str, object]:
        return make_plan(data, start=start, changes={"probe": "linear", **changes}).config.options

    data = split(photos(20))
    assert options() == {"pool_cells": 3}
    assert options(options={"pool_cells": 1}) == {"pool_cells": 1}
    assert options(probe=None, epochs=1) == {}
    assert options(save(tiny("vit32_small", num_classes=0), tmp_path / "plain").parent) == {}
    (run := tmp_path / "run").mkdir()
    save(make_plan(data, start=PHOTOS, changes={"probe": "linear"}).bare(), run)
    assert options(run) == {}  # its head reads them as it is
    most = 8 * len(data.train)  # fewer outputs count as eight
    monkeypatch.setattr("vitrail.training.start.MOST_FOR_CELLS", most)
    assert options() == {"pool_cells": 3}
    monkeypatch.setattr("vitrail.training.start.MOST_FOR_CELLS", most - 1)
    assert options() == {}
    assert options(run) == {"pool_cells": 1}


def test_a_trained_head_that_an_option_replaces_is_named_once(tmp_path: Path) -> None:
    changes = {"options": {"pool_cells": 1}}
    model = make_plan(split(photos(20)), start=PHOTOS, changes={"probe": "linear", **changes}).bare()
    start = save(model, tmp_path / "run").parent
    with pytest.warns(HeadNotice, match="pool_cells") as seen:
        make_plan(split(photos(20)), start=start, changes={"options": {"pool_cells": 2}})
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", HeadNotice)
        make_plan(split(photos(20)), start=start, changes={"probe": "linear"})  # fits its own
        make_plan(split(photos(20)), start=start, changes=changes)
    model.reset_head(7)
    other = save(model, tmp_path / "other").parent
    with pytest.warns(HeadNotice, match="7 classes") as seen:
        make_plan(split(photos(20)), start=other, changes={"probe": "linear"})
    assert len(seen) == 1


def test_an_option_may_make_the_head_wider_and_leaves_the_rest_as_it_was() -> None:
    narrow, wide = (
        make_plan(split(photos(20)), start=PHOTOS, changes={"probe": "linear", "options": {"pool_cells": count}})
        .build_task()
        .backbone
        for count in (1, 2)
    )
    assert wide.head.in_features == narrow.head.in_features + 4 * sum(narrow.config.level_dims)
    state = wide.state_dict()
    assert all(
        torch.equal(tensor, state[name]) for name, tensor in narrow.state_dict().items() if not name.startswith("head.")
    )
