"""Weights that a run starts from: named ones, those that ship with vitrail, or a refusal."""

from pathlib import Path

import pytest
from support.registered import tiny
from support.run_folder import record
from support.small_data import photos, split

from vitrail.errors import CheckpointError, ConfigError, HeadNotice
from vitrail.models.checkpoint import save
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
