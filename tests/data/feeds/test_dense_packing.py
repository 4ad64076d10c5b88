"""Packed targets with a value for each pixel: processes write what threads write, and say what cannot be used."""

import os
from pathlib import Path

import pytest
import torch

from vitrail.data.dataset import Dataset
from vitrail.data.feeds import decode_blocks
from vitrail.data.feeds.dense_packing import pack_targets
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.rendered import RenderedScenes
from vitrail.errors import DataError

FIT = Preprocess(image_size=(12, 16))
COUNT = 70  # more than a block

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def packed(data: Dataset, folder: Path, **options: object) -> dict[str, torch.Tensor]:
    ids = torch.arange(len(data)).flip(0)
    sizes = torch.tensor([[24, 32]]).expand(len(data), 2)
    found = pack_targets(data, ids, sizes, FIT, folder=folder, workers=2, **options)
    return {name: one.values for name, one in found.items()}


@pytest.mark.timeout(60)
def test_processes_write_the_file_of_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, told = RenderedScenes(COUNT, size=(24, 32), kinds=("mask", "depth")), []
    by_threads = packed(data, tmp_path / "threads")
    monkeypatch.setattr(decode_blocks, "_FEW_CORES", 1)
    monkeypatch.setattr(decode_blocks, "_FEW_COMPUTED", 1)
    monkeypatch.setattr("vitrail.data.feeds.dense_packing.ThreadPoolExecutor", None)  # must not be needed
    by_processes = packed(data, tmp_path / "processes", progress=lambda done, total: told.append((done, total)))
    assert by_threads.keys() == by_processes.keys() == {"mask", "depth"}
    assert all(torch.equal(by_threads[name], by_processes[name]) for name in by_threads)
    files = {folder: sorted((tmp_path / folder).glob("*.pack")) for folder in ("threads", "processes")}
    assert [path.read_bytes() for path in files["threads"]] == [path.read_bytes() for path in files["processes"]]
    assert told == [(64, COUNT), (COUNT, COUNT)] * 2


@pytest.mark.timeout(60)
@pytest.mark.parametrize("few", [1, 10**9])
def test_a_target_of_another_size_is_an_error(few: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_blocks, "_FEW_CORES", 1)
    monkeypatch.setattr(decode_blocks, "_FEW_COMPUTED", few)
    data, other = (RenderedScenes(3, size=(24, side), kinds=("depth",)) for side in (32, 40))
    data.targets = {"depth": torch.cat([data.targets["depth"][:2], other.targets["depth"][2:]])}
    with pytest.raises(DataError, match="same"):
        packed(data, tmp_path)
