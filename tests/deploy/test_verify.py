"""`vitrail verify`: what a path is, and whether it is whole."""

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.planted import rewritten, saved
from support.run_folder import run_folder

import vitrail
from vitrail.checksums import FILE, read_checksums
from vitrail.cli import main
from vitrail.data.feeds.pack_file import write as write_pack
from vitrail.deploy.verify import verify
from vitrail.errors import CheckpointError


@pytest.fixture
def run(tmp_path):
    return run_folder(tmp_path / "run", licence="CC0-1.0")


def test_a_run(run):
    found = verify(run)
    assert (found.kind, found.ok, found.problems) == ("run", True, ())
    assert found.facts["task"] == "classify"
    assert found.facts["licence"] == "CC0-1.0"
    assert found.facts["parameters"] > 10_000
    assert set(found.checksums.values()) == {"ok"}
    assert set(found.checksums) == {"run.json", "best.json", "model.safetensors", "config.json"}


@pytest.mark.parametrize("name", ["run.json", "best.json", "model.safetensors", "config.json"])
def test_a_changed_file_is_found_before_use_and_can_be_accepted(run, name, capsys):
    data = (run / name).read_bytes()
    changed = data.replace(b"cat", b"cow", 1) if b"cat" in data else data[:-1] + bytes([data[-1] ^ 1])
    (run / name).write_bytes(changed)
    with pytest.raises(CheckpointError, match="--accept"):
        vitrail.open(run)
    found = verify(run)
    assert not found.ok
    assert found.checksums[name] == "changed"
    with pytest.raises(SystemExit) as caught:
        main(["verify", str(run)])
    assert caught.value.code == 1
    assert name in capsys.readouterr().out


def test_an_edit_on_purpose_goes_on(run):
    about = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(about | {"licence": "MIT"}))
    assert not verify(run).ok
    assert verify(run, accept=True).ok
    assert vitrail.open(run).record.licence == "MIT"


def test_a_run_without_checksums_is_as_before(run):
    (run / FILE).unlink()
    assert set(verify(run).checksums.values()) == {"not recorded"}
    assert verify(run).ok
    vitrail.open(run)


def test_an_interrupted_save_leaves_no_checksums(run):
    model = vitrail.load(run)
    vitrail.save(model, run)
    assert read_checksums(run) == {}


@pytest.mark.parametrize("to", ["vitrail", "timm", "hf", "pth"])
def test_checkpoints_of_all_dialects(tmp_path, to):
    model = vitrail.create("vit_tiny_patch16", dim=192, depth=1, num_heads=3, num_classes=3)
    folder = vitrail.save(model, tmp_path / "ours").parent
    if to == "pth":
        file = tmp_path / "model.pth"
        torch.save(load_file(vitrail.convert(folder, tmp_path / "timm", to="timm")), file)
    else:
        file = vitrail.convert(folder, tmp_path / to, to=to) if to != "vitrail" else folder
    found = verify(file)
    assert (found.kind, found.problems) == ("checkpoint", ())
    assert found.facts["parameters"] == sum(one.numel() for one in model.parameters())
    assert found.facts["outputs of the head"] == 3


def test_a_damaged_checkpoint(tmp_path):
    file = vitrail.save(vitrail.create("vit32_small", depth=1), tmp_path / "model.safetensors")
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(bytes(data))
    assert "checksum" in verify(file).problems[0]
    tensors = load_file(file)
    tensors.pop("norm.weight")
    save_file(tensors, tmp_path / "other.safetensors")
    assert verify(tmp_path / "other.safetensors").problems


def test_a_pickle_is_not_run(tmp_path):
    (tmp_path / "model.pth").write_bytes(saved(tmp_path / "made"))
    assert not verify(tmp_path / "model.pth").ok
    assert not (tmp_path / "made").exists()


def test_artefacts(shipped, tmp_path):
    found = verify(shipped[0])
    assert (found.kind, found.problems) == ("folder of artefacts", ())
    assert set(found.checksums.values()) == {"ok"}
    for name in ("model.pt2", "model.onnx", "model.xml"):
        one = verify(shipped[0] / name)
        assert (one.kind, one.ok, one.facts["task"]) == ("artefact", True, "classify")
    planted = rewritten(shipped[0] / "model.pt2", tmp_path / "model.pt2", {"data/opaque": saved(tmp_path / "made")})
    assert "not opened" in verify(planted).problems[0]
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", ["model.pt2", "model.onnx", "model.xml", "model.bin"])
def test_an_artefact_that_was_changed_is_not_opened(shipped, tmp_path, name):
    folder = shutil.copytree(shipped[0], tmp_path / "dist")
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(bytes(data))
    assert not verify(folder).ok
    with pytest.raises(CheckpointError, match=r"changed|not opened|damaged"):
        vitrail.open(folder / name.replace(".bin", ".xml"))


def test_packs(tmp_path):
    file = tmp_path / "a.pack"
    write_pack(file, [torch.zeros(4, 3, 8, 8, dtype=torch.uint8)], lambda: {"name": "photos"})
    assert (verify(file).kind, verify(file).ok) == ("packed images", True)
    assert verify(tmp_path).kind == "cache of packed images"
    data = bytearray(file.read_bytes())
    data[7] ^= 1
    file.write_bytes(bytes(data))
    assert not verify(file).ok


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_tables(tmp_path, suffix):
    rows = [{"path": f"{n}.png", "label": "cat", "error": None, "model": "runs/a@12"} for n in range(3)]
    file = tmp_path / f"table{suffix}"
    for more, ok in (([], True), (rows[:1], False), ([{**rows[0], "path": "x", "model": "b@3"}], False)):
        write_table(file, rows + more)
        found = verify(file)
        assert (found.kind, found.ok) == ("table of predictions", ok)
    assert verify(file).facts["bytes"] == file.stat().st_size


@pytest.mark.parametrize(
    "name", ["a.csv", "a.jsonl", "a.parquet", "a.onnx", "a.xml", "a.pt2", "a.pth", "a.safetensors"]
)
def test_a_named_pipe_is_not_waited_for(tmp_path, name):
    if name == "a.parquet":
        pytest.importorskip("pyarrow")
    os.mkfifo(tmp_path / name)
    found = verify(tmp_path / name)
    assert not found.ok
    assert "pipe" in found.problems[0]


def write_table(file, rows):
    if file.suffix == ".parquet":
        arrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(arrow.Table.from_pylist(rows), file)
    elif file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        lines = [",".join(str(value or "") for value in row.values()) for row in rows]
        file.write_text("\n".join([",".join(rows[0]), *lines]) + "\n")


def test_the_packaged_model_is_whole(capsys):
    assert main(["verify", "packaged", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    assert set(found["checksums"].values()) == {"ok"}


def test_anything_else_is_a_sentence(tmp_path):
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(CheckpointError, match="not a run"):
        verify(tmp_path / "a.txt")
    with pytest.raises(CheckpointError, match="accept"):
        verify(tmp_path / "a.txt", accept=True)
    with pytest.raises(CheckpointError, match="exist"):
        verify(tmp_path / "gone.safetensors")
