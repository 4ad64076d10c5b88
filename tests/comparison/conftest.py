"""Two runs on the same images for all tests of a process."""

from pathlib import Path

import pytest
from support.compared_runs import labelled, made_run


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return labelled(tmp_path_factory.mktemp("data") / "photos")


@pytest.fixture(scope="session")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    return [made_run(folder / "plain", data), made_run(folder / "slow", data, lr=1e-4, seed=1)]
