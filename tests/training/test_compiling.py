"""Compilation by forecast: long runs are compiled, short ones and those of a CPU are not."""

from pathlib import Path

import pytest
import torch
from support.small_data import photos, split

from vitrail.training import compiling
from vitrail.training.config import TrainConfig
from vitrail.training.distributed import World, _blocks, spread
from vitrail.training.logs import Logs
from vitrail.training.plan import make_plan


@pytest.mark.parametrize(("epochs", "pays"), [(1, False), (30, True)])
def test_it_pays_in_long_runs(epochs: int, pays: bool) -> None:
    found = compiling.forecast(TrainConfig(epochs=epochs), 50_000, speed=2_000.0)
    assert found.seconds == 25.0 * epochs
    assert found.pays == pays
    assert ("is compiled" in str(found)) == pays


def test_the_break_even_is_the_cost() -> None:
    images = round(compiling.SECONDS / (1 - 1 / compiling.GAIN) * 100)
    assert not compiling.forecast(TrainConfig(epochs=1), images - 5, speed=100.0).pays
    assert compiling.forecast(TrainConfig(epochs=1), images + 5, speed=100.0).pays


def test_a_plan_gets_a_decision_and_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"image_size": 16, "options": {"dim": 16, "depth": 1, "num_heads": 2}, "compile": "auto"}
    plan = make_plan(split(photos(24)), changes=small)
    rest = World(), Logs(tmp_path, silent=True)
    assert compiling.decide(plan, 100, torch.device("cpu"), *rest).config.compile is False
    monkeypatch.setattr(compiling, "step_speed", lambda *_, **__: 0.1)
    decided = compiling.decide(plan, 100, torch.device("cuda"), *rest)
    assert decided.config.compile is True
    assert "compiled" in decided.notes[-1]
    monkeypatch.setattr(compiling, "step_speed", lambda *_, **__: 1e9)
    assert compiling.decide(plan, 100, torch.device("cuda"), *rest).config.compile is False


def test_blocks_alone_are_compiled_where_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(split(photos(24)), changes={"image_size": 16, "options": {"dim": 16, "depth": 2, "num_heads": 2}})
    compiled: list[torch.nn.Module] = []

    def noted(module: torch.nn.Module) -> None:
        compiled.append(module)

    monkeypatch.setattr(torch.nn.Module, "compile", noted)
    for way, expected in ((False, 0), ("blocks", 2), (True, 1)):
        task = plan.build_task()
        compiled.clear()
        spread(task, World(), shard="ddp", device=torch.device("cpu"), precision="float32", compiled=way)
        assert len(compiled) == expected
        assert way != "blocks" or compiled == list(_blocks(task))
