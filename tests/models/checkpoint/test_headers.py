"""Headers that lie, and pickles whose tensors are larger than their files."""

import json
import os
import struct
import time
import zipfile

import pytest
import torch
from safetensors.torch import save_file
from support.planted import Creates, pickled, saved

import vitrail
from vitrail.errors import CheckpointError
from vitrail.models.checkpoint import files
from vitrail.models.checkpoint.headers import MAX_HEADER, check_pickle, read_header


def written(file, header, data=b"", size=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text) if size is None else size) + text + data)
    return file


def test_names_types_and_shapes(tmp_path):
    tensors = {"a": torch.zeros(2, 3), "b": torch.zeros(4, dtype=torch.bfloat16), "c": torch.zeros(0, 7).long()}
    save_file(tensors, tmp_path / "a.safetensors", {"key": "value"})
    found = read_header(tmp_path / "a.safetensors")
    assert {name: (one.shape, one.dtype) for name, one in found.tensors.items()} == {
        name: (one.shape, one.dtype) for name, one in tensors.items()
    }
    assert found.metadata == {"key": "value"}
    assert all(one.is_meta for one in found.tensors.values())


ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "size", "word"),
    [
        ({"a": ONE}, 2**63, "header"),
        (b'{"\\ud800": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}', None, "surrogates"),
        ({"a": ONE}, MAX_HEADER + 1, "header"),
        ({"a": ONE}, 0, "header"),
        ({"a": ONE | {"data_offsets": [0, 800]}}, None, "offsets"),
        ({"a": ONE | {"data_offsets": [8, 0]}}, None, "offsets"),
        ({"a": ONE | {"shape": [10**9]}}, None, "offsets"),
        ({"a": ONE | {"shape": [-2]}}, None, "shape"),
        ({"a": ONE | {"shape": [2.0]}}, None, "shape"),
        ({"a": ONE | {"shape": [1] * 40}}, None, "shape"),
        ({"a": ONE | {"dtype": "X"}}, None, "X"),
        ({"a": ONE, "b": ONE}, None, "offsets"),
        ({"a": ONE, "b": ONE | {"data_offsets": [8, 16]}}, None, "bytes"),
        ({"a": ONE, "__metadata__": {"x": 3}}, None, "metadata"),
        ({"a": 3}, None, "damaged"),
        ([1], None, "damaged"),
        (b"[" * 200_000, None, "deep"),
        (b'{"a": NaN}', None, "NaN"),
        (b'{"a": {}, "a": {}}', None, "twice"),
        (b"\xff" * 20, None, "damaged"),
    ],
)
def test_headers_that_lie(tmp_path, header, size, word):
    file = written(tmp_path / "model.safetensors", header, bytes(8), size)
    for read in (read_header, vitrail.load):
        with pytest.raises(CheckpointError, match=word):
            read(file)


@pytest.mark.parametrize("plant", [pickled, saved])
@pytest.mark.parametrize("name", ["model.pth", "model.pt", "pytorch_model.bin", "model.tar", "model.safetensors"])
def test_a_planted_pickle_never_runs(tmp_path, plant, name):
    made = tmp_path / "made"
    (tmp_path / name).write_bytes(plant(made))
    for source in (tmp_path, tmp_path / name):
        with pytest.raises(CheckpointError, match=r"damaged|safely"):
            vitrail.load(source)
    assert not made.exists()


def test_a_planted_pickle_beside_tensors_never_runs(tmp_path):
    made = tmp_path / "made"
    torch.save({"state_dict": {"a": torch.zeros(2)}, "args": Creates(made)}, tmp_path / "model.pth")
    with pytest.raises(CheckpointError, match="safely"):
        vitrail.load(tmp_path / "model.pth")
    assert not made.exists()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(1).expand(30_000_000, 384),
        lambda: torch.empty(10**6, 10**6, device="meta"),
        lambda: torch.sparse_coo_tensor(torch.zeros(1, 1).long(), torch.zeros(1), (10**12,)),
        lambda: torch.quantize_per_tensor(torch.zeros(3), 1.0, 0, torch.qint8),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_tensors_larger_than_their_file_are_refused(tmp_path, make):
    began = time.process_time()
    torch.save({"patch_embed.proj.weight": make()}, tmp_path / "model.pth")
    with pytest.raises(CheckpointError, match=r"plain|safely"):
        vitrail.load(tmp_path / "model.pth")
    assert time.process_time() - began < 2


def test_a_compressed_archive_is_refused(tmp_path):
    torch.save({"a": torch.zeros(1000)}, tmp_path / "old.pth")
    with zipfile.ZipFile(tmp_path / "old.pth") as old, zipfile.ZipFile(tmp_path / "model.pth", "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name), compress_type=zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointError, match="compressed"):
        vitrail.load(tmp_path / "model.pth")


class Allocates:
    """Pickled, it is a call that allocates memory where it is loaded, and that torch allows."""

    def __init__(self, kind):
        self.kind = kind

    def __reduce__(self):
        return self.kind, (10**12 if self.kind is bytearray else 10**6,)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("kind", [bytearray, torch.Tensor])
def test_a_pickle_allocates_no_more_than_its_file(tmp_path, kind, zipped):
    file = tmp_path / "model.pth"
    torch.save({"head.weight": Allocates(kind)}, file, _use_new_zipfile_serialization=zipped)
    assert file.stat().st_size < 2000
    with pytest.raises(CheckpointError, match=r"bytes|bytearray"):
        vitrail.load(file)


@pytest.mark.parametrize("zipped", [True, False])
def test_archives_of_torch_are_checked_and_read(tmp_path, zipped):
    shared = torch.arange(6.0)
    torch.save({"a": shared, "b": shared[2:]}, tmp_path / "a.pth", _use_new_zipfile_serialization=zipped)
    check_pickle(tmp_path / "a.pth")
    assert torch.equal(files.read(tmp_path / "a.pth").tensors["b"], shared[2:])


def test_an_archive_has_one_list_of_members(tmp_path):
    torch.save({"a": torch.zeros(3)}, tmp_path / "model.pth")
    data = (tmp_path / "model.pth").read_bytes()
    with zipfile.ZipFile(tmp_path / "copy.pth", "w") as copy, zipfile.ZipFile(tmp_path / "model.pth") as old:
        for name in old.namelist():
            copy.writestr(name, old.read(name))
    check_pickle(tmp_path / "copy.pth")  # of 32 bits
    for wrong in (b"before" + data, data[:-2] + b"\5\0after"):
        (tmp_path / "model.pth").write_bytes(wrong)
        with pytest.raises(CheckpointError, match="directory"):
            check_pickle(tmp_path / "model.pth")


@pytest.mark.parametrize("name", ["model.pth", "model.safetensors"])
def test_a_named_pipe_is_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(CheckpointError, match="pipe"):
        vitrail.load(tmp_path / name)


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a": NaN}', '{"a": 1, "a": 2}', '{"a": ' + "9" * 5000 + "}", "[]"])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_json_beside_the_weights_is_strict(tmp_path, name, text):
    if name == "config.json":
        save_file({"a": torch.zeros(2)}, tmp_path / "model.safetensors")
    (tmp_path / name).write_text(text)
    with pytest.raises(CheckpointError, match="JSON"):
        vitrail.load(tmp_path)


@pytest.mark.parametrize("shard", ["../a.safetensors", "/etc/passwd", "sub/a.safetensors"])
def test_shards_lie_beside_their_index(tmp_path, shard):
    (tmp_path / "sub").mkdir()
    save_file({"a": torch.zeros(2)}, tmp_path / "sub" / "a.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(CheckpointError, match="folder"):
        vitrail.load(tmp_path)
