"""Damaged, malicious and incomplete weight files: each is an error that names the file; nothing is half loaded."""

import contextlib
import json
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import vitrail
from vitrail.errors import CheckpointError, VitrailError
from vitrail.models.backbone import Backbone
from vitrail.models.checkpoint.huggingface import HuggingFace

Change = Callable[[Path], object]


def tiny(num_classes: int = 3) -> Backbone:
    options = {"dim": 16, "depth": 1, "num_heads": 2, "image_size": 32, "num_classes": num_classes}
    return vitrail.create("vit_tiny_patch16", **options)


def same(a: Backbone, b: Backbone) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return a.config == b.config and all(torch.equal(ours[name], theirs[name]) for name in ours | theirs)


@pytest.fixture
def model() -> Backbone:
    return tiny()


@pytest.fixture
def file(model: Backbone, tmp_path: Path) -> Path:
    return vitrail.save(model, tmp_path / "model.safetensors")


def refused(path: Path, match: str | None = None) -> None:
    with pytest.raises(CheckpointError, match=match) as caught:
        vitrail.load(path)
    assert str(path.name) in str(caught.value)


# Damage


def test_truncation_at_any_length(file: Path) -> None:
    data = file.read_bytes()
    header = int.from_bytes(data[:8], "little")
    cuts = [0, 1, 7, 8, 9, header // 2, header + 7, header + 8, header + 9, len(data) // 2, len(data) - 1]
    for cut in cuts + random.Random(0).sample(range(len(data)), 30):
        file.write_bytes(data[:cut])
        refused(file)
    file.write_bytes(data + b"\0")
    refused(file)


@pytest.mark.parametrize("beside", [True, False])
def test_a_single_flipped_byte(beside: bool, model: Backbone, tmp_path: Path) -> None:
    """Refused, or of no consequence, such as the value of the header's `format`."""
    file = vitrail.save(model, tmp_path)
    if not beside:
        (tmp_path / "config.json").unlink()
    data = file.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    chance = random.Random(0)
    places = [*range(8), *chance.sample(range(8, header), 120), *chance.sample(range(header, len(data)), 80)]
    harmless = 0
    for place in places:
        flipped = bytearray(data)
        flipped[place] ^= chance.randrange(1, 256)
        file.write_bytes(flipped)
        try:
            loaded = vitrail.load(tmp_path)
        except CheckpointError:
            continue
        assert same(loaded, model), f"byte {place} of {len(data)} went unnoticed"
        harmless += 1
    assert harmless < 10


def test_an_edited_tensor(model: Backbone, file: Path) -> None:
    with safe_open(file, framework="pt") as handle:
        metadata = handle.metadata()
    tensors = load_file(file)
    tensors["head.bias"] += 1e-3
    save_file(tensors, file, metadata)
    refused(file, "checksum")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.write_text(f.read_text().replace('"num_heads": 2', '"num_heads": 4')), "does not belong to"),
        (lambda f: f.write_text(f.read_text()[:50]), "valid JSON"),
        (lambda f: f.write_bytes(b"\xff\xfe\x00"), "valid JSON"),
        (lambda f: f.write_text("[1, 2]"), "JSON object"),
    ],
)
def test_an_edited_config(change: Change, message: str, model: Backbone, tmp_path: Path) -> None:
    vitrail.save(model, tmp_path)
    change(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match=message):
        vitrail.load(tmp_path)
    (tmp_path / "config.json").unlink()
    assert same(vitrail.load(tmp_path), model)


def test_a_config_that_was_only_formatted_anew(model: Backbone, tmp_path: Path) -> None:
    vitrail.save(model, tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()), sort_keys=True))
    assert same(vitrail.load(tmp_path), model)


def test_several_files_in_a_folder_and_the_config_of_one(model: Backbone, tmp_path: Path) -> None:
    vitrail.save(tiny(5), tmp_path)
    vitrail.save(model, tmp_path / "best.safetensors")
    assert same(vitrail.load(tmp_path / "best.safetensors"), model)
    assert vitrail.load(tmp_path).config.num_classes == 5


def test_text_that_calls_itself_safetensors(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    refused(file, "damaged")


# Pickles


class Payload:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("legacy", [True, False])
def test_a_pickle_that_executes_code_is_refused_and_not_run(legacy: bool, tmp_path: Path) -> None:
    file, target = tmp_path / "model.pth", tmp_path / "executed"
    content = {"model": {"w": torch.zeros(2)}, "extra": Payload(target)}
    torch.save(content, file, _use_new_zipfile_serialization=not legacy)
    refused(file, r"weights_only")
    file.write_bytes(pickle.dumps(content))
    refused(file, "cannot be read safely")
    assert not target.exists()


def test_what_a_pickle_says_of_itself_is_told_in_one_short_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save({"w": torch.zeros(2)}, tmp_path / "model.pth")
    monkeypatch.setattr(torch, "load", lambda *_, **__: (_ for _ in ()).throw(ValueError("x" * 10**6 + "\ny")))
    with pytest.raises(CheckpointError, match="weights_only") as caught:
        vitrail.load(tmp_path / "model.pth")
    assert len(str(caught.value)) < 1000


def test_a_whole_module_in_a_pickle_is_refused(model: Backbone, tmp_path: Path) -> None:
    torch.save(model, tmp_path / "model.pth")
    refused(tmp_path / "model.pth", "weights_only")


def theirs(model: Backbone) -> dict[str, Any]:
    return dict(HuggingFace().write(model).tensors)


WRAPPINGS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "bare": lambda state: state,
    "trainer": lambda state: {"model": state, "optimizer": {"state": {}}, "epoch": 3},
    "twice": lambda state: {"state_dict": {"model": state}},
    "averaged": lambda state: {"model": {name: t + 1 for name, t in state.items()}, "model_ema": state},
    "averaged by timm": lambda state: {"state_dict": {n: t + 1 for n, t in state.items()}, "state_dict_ema": state},
    "parallel": lambda state: {f"module.{name}": t for name, t in state.items()},
    "compiled": lambda state: {f"_orig_mod.{name}": t for name, t in state.items()},
    "compiled and parallel": lambda state: {"model": {f"module._orig_mod.{n}": t for n, t in state.items()}},
    "counters beside tensors": lambda state: state | {"step": 3},
}


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".bin"])
@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.filterwarnings("ignore::vitrail.errors.ChosenNotice")
def test_what_training_scripts_wrap_around_weights(wrapping: str, suffix: str, model: Backbone, tmp_path: Path) -> None:
    file = tmp_path / f"weights{suffix}"
    torch.save(WRAPPINGS[wrapping](theirs(model)), file)
    (tmp_path / "config.json").write_text(json.dumps(HuggingFace().write(model).config))
    loaded = vitrail.load(file)
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize("content", [[1, 2], {}, {"model": {}}, {0: torch.zeros(2)}, torch.zeros(3), {"a": 1}])
def test_a_pickle_without_weights(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "model.pth")
    refused(tmp_path / "model.pth", "no tensors")


def test_damaged_pickles(model: Backbone, tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    torch.save(theirs(model), file)
    data = file.read_bytes()
    for cut in [0, 1, 100, len(data) // 2, len(data) - 1]:
        file.write_bytes(data[:cut])
        refused(file)
    chance = random.Random(0)
    for _ in range(30):  # a pickle carries no checksum over all, but nothing else than an error of ours may come of it
        flipped = bytearray(data)
        flipped[chance.randrange(len(data))] ^= 255
        file.write_bytes(flipped)
        with contextlib.suppress(VitrailError):
            vitrail.load(file, model="vit_tiny_patch16", num_classes=3)


# Folders


def test_an_ambiguous_folder(model: Backbone, tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        vitrail.save(model, tmp_path / name)
    refused(tmp_path, "a.safetensors, b.safetensors")
    (tmp_path / "b.safetensors").unlink()
    assert same(vitrail.load(tmp_path), model)


def test_an_empty_folder(tmp_path: Path) -> None:
    refused(tmp_path, "no weight file")


def test_a_folder_of_folders(model: Backbone, tmp_path: Path) -> None:
    vitrail.save(model, tmp_path / "runs" / "mine")
    refused(tmp_path / "runs", r"runs/mine")


def test_a_path_that_is_not_there_names_the_nearest(model: Backbone, file: Path, tmp_path: Path) -> None:
    for wrong in (tmp_path / "model.safetensor", tmp_path.with_name(f"{tmp_path.name}_") / "model.safetensors"):
        with pytest.raises(CheckpointError) as caught:
            vitrail.load(wrong)
        assert str(wrong) in str(caught.value)
        assert f"did you mean {str(file)!r}?" in str(caught.value)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(CheckpointError, match=r"aa.*model\.safetensors$"):
        vitrail.load(tmp_path / "aa")


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    refused(tmp_path / "notes.txt", r"not a weight file")


def test_tensors_of_nobody(tmp_path: Path) -> None:
    save_file({"a.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    refused(
        tmp_path / "model.safetensors",
        r"not recognised",
    )


# Shards


@pytest.fixture
def sharded(model: Backbone, tmp_path: Path) -> Path:
    """A Hugging Face folder in two shards."""
    foreign = HuggingFace().write(model)
    names = sorted(foreign.tensors)
    halves = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for shard, part in halves.items():
        save_file({name: foreign.tensors[name].contiguous() for name in part}, tmp_path / shard)
    where = {name: shard for shard, part in halves.items() for name in part}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    (tmp_path / "config.json").write_text(json.dumps(foreign.config))
    return tmp_path / "model.safetensors.index.json"


def edit_map(index: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(index.read_text())
    change(content["weight_map"])
    index.write_text(json.dumps(content))


def test_shards_load(sharded: Path, model: Backbone) -> None:
    for path in (sharded, sharded.parent):
        loaded = vitrail.load(path)
        assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), model.parameters(), strict=True))


def test_a_missing_shard(sharded: Path) -> None:
    (sharded.parent / "model-2.safetensors").unlink()
    refused(sharded, "model-2.safetensors")


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/outside.safetensors", "sub/outside.safetensors", ""])
def test_a_shard_outside_the_folder(name: str, sharded: Path) -> None:
    for place in (sharded.parent.parent / "outside.safetensors", sharded.parent / "sub" / "outside.safetensors"):
        place.parent.mkdir(exist_ok=True)
        save_file({"a": torch.zeros(1)}, place)
    edit_map(sharded, lambda where: where.update(a=name))
    refused(sharded, "shard")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda where: where.update(phantom="model-1.safetensors"), "disagree on 1 tensors: phantom"),
        (lambda where: where.pop("classifier.bias"), "disagree on 1 tensors: classifier.bias"),
        (lambda where: where.update(a=3), "weight_map"),
    ],
)
def test_an_index_that_disagrees_with_its_shards(
    change: Callable[[dict[str, Any]], object], message: str, sharded: Path
) -> None:
    edit_map(sharded, change)
    refused(sharded, message)


def test_an_index_without_a_map(sharded: Path) -> None:
    sharded.write_text("{}")
    refused(sharded, "weight_map")
