import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitrail
from vitrail.models.checkpoint.headers import digest_of_tensors, read_header
from vitrail.models.checkpoint.inspection import inspect_checkpoint


@pytest.fixture
def folder(tmp_path):
    return vitrail.save(vitrail.create("vit32_small", depth=1, num_classes=3), tmp_path / "model").parent


def test_a_checkpoint_is_described_without_its_tensors(folder):
    found = inspect_checkpoint(folder)
    assert (found.problem, found.written_by, found.checksum) == (None, "vitrail", "matches its header")
    assert all(tensor.is_meta for tensor in found.tensors.values())
    assert found.config == vitrail.load(folder).config


def test_the_checksum_is_the_one_that_load_checks(folder):
    file = folder / "model.safetensors"
    header = read_header(file)
    checksum, _, text = header.metadata["vitrail"].partition(" ")
    assert digest_of_tensors(text, file, header) == checksum


def test_shards(folder, tmp_path):
    tensors = load_file(vitrail.convert(folder, tmp_path / "timm", to="timm"))
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    (tmp_path / "sharded").mkdir()
    for file, some in parts.items():
        save_file({name: tensors[name] for name in some}, tmp_path / "sharded" / file)
    index = {"weight_map": {name: file for file, some in parts.items() for name in some}}
    (tmp_path / "sharded" / "model.safetensors.index.json").write_text(json.dumps(index))
    found = inspect_checkpoint(tmp_path / "sharded")
    assert found.tensors.keys() == tensors.keys()
    assert [file.name for file in found.files] == list(parts)


def test_a_model_that_does_not_fit_its_config_is_a_problem(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["norm.weight"] = torch.zeros(7)
    save_file(tensors, folder / "other.safetensors")
    assert inspect_checkpoint(folder / "other.safetensors").problem is not None
