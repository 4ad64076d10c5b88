"""The images of a comparison: the runs' own where they are the same, or those that are named."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.compared_runs import COUNT, labelled, made_run

from vitrail.comparison.opened import open_runs
from vitrail.comparison.shared_images import named_images, own_images
from vitrail.errors import ConfigError
from vitrail.tasks.classify import ClassifyConfig

CPU = torch.device("cpu")


def test_the_test_images_of_the_runs(runs: list[Path]) -> None:
    found = own_images(open_runs(runs, device=CPU))
    assert len(found.dataset) == COUNT
    assert "test images" in found.about
    assert found.notes == ()


def test_validation_images_come_with_a_note(data: Path, tmp_path: Path) -> None:
    source = data / "train"
    runs = open_runs([made_run(tmp_path / name, source, val=0.5) for name in "ab"], device=CPU)
    found = own_images(runs)
    assert len(found.dataset) == COUNT // 2
    assert "epoch" in found.notes[0]


def test_images_that_differ_are_refused(data: Path, tmp_path: Path) -> None:
    source = data / "train"
    runs = [made_run(tmp_path / str(seed), source, val=0.5, recipe={"seed": seed}) for seed in (0, 3)]
    with pytest.raises(ConfigError, match="seeds 0 and 3"):
        own_images(open_runs(runs, device=CPU))
    elsewhere = made_run(tmp_path / "c", labelled(tmp_path / "other"))
    with pytest.raises(ConfigError, match="--data"):
        own_images(open_runs([runs[0], elsewhere], device=CPU))


def test_an_ensemble_has_seen_all_validation_images(data: Path, tmp_path: Path) -> None:
    runs = open_runs([made_run(tmp_path / name, data / "train", val=0.5) for name in "ab"], device=CPU)
    joined = replace(runs[1], record=replace(runs[1].record, task=ClassifyConfig(members=3)))
    with pytest.raises(ConfigError, match="ensemble"):
        own_images([runs[0], joined])


def test_data_that_are_gone_are_named(tmp_path: Path) -> None:
    runs = open_runs([made_run(tmp_path / name, tmp_path / "gone") for name in "ab"], device=CPU)
    with pytest.raises(ConfigError, match="gone"):
        own_images(runs)


def test_named_images_may_have_been_seen(runs: list[Path], data: Path, tmp_path: Path) -> None:
    opened = open_runs(runs, device=CPU)
    assert named_images(opened, labelled(tmp_path / "new")).notes == ()
    seen = named_images(opened, data / "val")
    assert len(seen.dataset) == COUNT
    assert len(seen.notes) == 2
