"""What a path stands for, and the nearest to a misspelt one."""

from pathlib import Path

import pytest
from support.registered import tiny

import vitrail
from vitrail.errors import CheckpointError
from vitrail.models.registry import presets
from vitrail.packaged import find_packaged
from vitrail.runs.paths import checkpoint_path, is_name, names_model


def test_what_is_a_model_and_what_is_a_picture(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").touch()
    (tmp_path / "photos").mkdir()
    (tmp_path / "notes.txt").touch()
    models = ["packaged", "hf-hub:owner/name", tmp_path / "run", "w.safetensors", "w.pth", "runs/misspelt"]
    assert all(map(names_model, models))
    assert not any(map(names_model, ["a.jpg", "no/such.PNG", tmp_path / "photos", tmp_path / "notes.txt"]))


def test_names_of_models_and_folders_of_such_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(is_name(name) for name in presets())
    monkeypatch.chdir(tmp_path)
    vitrail.save(tiny(num_classes=3), tmp_path / "levit_128s")
    assert not is_name("levit_128s")


def test_the_packaged_model_and_what_was_named(tmp_path: Path) -> None:
    assert checkpoint_path("packaged") == find_packaged()
    assert checkpoint_path(tmp_path) == tmp_path
    assert checkpoint_path("hf-hub:owner/name") == "hf-hub:owner/name"


@pytest.mark.parametrize(
    ("misspelt", "nearest"),
    [
        ("packged", "packaged"),
        ("runs/birdz", "runs/birds"),
        ("birdz", "runs/birds"),
        ("vit_tiny", "vit_tiny_patch16"),
    ],
)
def test_the_nearest_is_named(misspelt: str, nearest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "birds").mkdir(parents=True)
    (tmp_path / "runs" / "birds" / "run.json").touch()
    with pytest.raises(CheckpointError, match=nearest):
        checkpoint_path(misspelt)
