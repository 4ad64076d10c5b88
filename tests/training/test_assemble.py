"""The parts of a run fit what its plan and the machine ask for."""

from pathlib import Path

import pytest
import torch
from support.small_data import photos, split

from vitrail.errors import ConfigError
from vitrail.training.assemble import assemble, deterministic, prepare_data
from vitrail.training.config import TrainConfig
from vitrail.training.distributed import World
from vitrail.training.logs import Logs
from vitrail.training.plan import Plan, make_plan
from vitrail.training.step import Step

SMALL = {"image_size": 16, "options": {"dim": 32, "depth": 2, "num_heads": 2}}


def plan_of(**changes: object) -> Plan:
    data = split(photos(64, size=16))
    return make_plan(
        data, model="vit32_small", recipe=None, start=None, teacher=None, val=None, changes=SMALL | changes
    )


def test_a_batch_is_never_larger_than_the_data(tmp_path: Path) -> None:
    plan, packs = prepare_data(plan_of(batch_size=1000, accumulate=3), World(), Logs(tmp_path, silent=True))
    assert plan.config.batch_size == len(packs.train) // 3 * 3
    assert "training images" in plan.notes[-1]


def test_parts_must_be_equal(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="divisible by accumulate 3"):
        prepare_data(plan_of(batch_size=16, accumulate=3), World(), Logs(tmp_path, silent=True))


def test_steps_on_a_cpu_are_launched_even_when_compiled(tmp_path: Path) -> None:
    logs = Logs(tmp_path, silent=True)
    plan, packs = prepare_data(plan_of(batch_size=16, compile=True), World(), logs)
    loop = assemble(plan, packs, tmp_path, world=World(), device=torch.device("cpu"), shard="ddp", logs=logs)
    assert type(loop.step) is Step
    assert loop.step.loss._compiled_call_impl is not None
    assert loop.steps == len(packs.train) // 16


def test_determinism_ends_with_its_context() -> None:
    with deterministic(TrainConfig(deterministic=True)):
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
