"""Files are written completely or not at all, whatever happens to the disk or the process."""

import errno
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support import processes

import vitrail
from vitrail import files
from vitrail.errors import DataError, WriteError
from vitrail.models.backbone import Backbone


def tiny(num_classes: int = 3) -> Backbone:
    options = {"dim": 16, "depth": 1, "num_heads": 2, "image_size": 32, "num_classes": num_classes}
    return vitrail.create("vit_tiny_patch16", **options)


def same(a: Backbone, b: Backbone) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return a.config == b.config and all(torch.equal(ours[name], theirs[name]) for name in ours | theirs)


@pytest.fixture
def model() -> Backbone:
    return tiny()


def no_space(*_: Any) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("where", ["save_file", "os.fsync", "Path.replace"])
@pytest.mark.parametrize("name", ["model.safetensors", "folder"])
def test_a_full_disk_leaves_the_old_file(
    name: str, where: str, model: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vitrail.save(model, tmp_path / name)
    before = {item: item.read_bytes() for item in tmp_path.rglob("*") if item.is_file()}
    with monkeypatch.context() as patch:
        patch.setattr(f"vitrail.files.{where}", no_space)
        with pytest.raises(WriteError, match="cannot write"):
            vitrail.save(tiny(5), tmp_path / name)
    after = {item: item.read_bytes() for item in tmp_path.rglob("*") if item.is_file()}
    if where != "Path.replace":  # then the old config.json is gone already; the weights are complete without it
        assert after == before
    assert same(vitrail.load(tmp_path / name), model)
    assert not [item for item in tmp_path.rglob(".*") if item.is_file()]


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def write(new: Path) -> None:
        new.write_text("half")
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        files.write_atomically(tmp_path / "file", write)
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
import vitrail
from vitrail import files
kill = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
step, folder = sys.argv[1:]
if step == "rename":
    Path.replace = kill
elif step == "config":
    files.write_json = kill
model = vitrail.create("vit_tiny_patch16", dim=16, depth=1, num_heads=2, image_size=32, num_classes=5)
vitrail.save(model, folder)
"""


@pytest.mark.parametrize(("step", "num_classes"), [("rename", 3), ("config", 5)])
def test_a_killed_process_leaves_a_checkpoint_that_loads(
    step: str, num_classes: int, model: Backbone, tmp_path: Path
) -> None:
    vitrail.save(model, tmp_path)
    done = processes.run([sys.executable, "-c", KILLED, step, str(tmp_path)])
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert vitrail.load(tmp_path).config.num_classes == num_classes
    if step == "rename":
        assert [item for item in tmp_path.iterdir() if item.name.startswith(".model.safetensors.")]  # and is not read
        assert same(vitrail.load(tmp_path), model)


def test_a_folder_that_cannot_be_made(model: Backbone, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(WriteError, match="cannot write"):
        vitrail.save(model, tmp_path / "file" / "deeper")


def test_a_folder_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="folder"):
        files.write_json(tmp_path, {})


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "file.json"
    files.write_json(file, {"a": 1})
    mask = os.umask(0)
    os.umask(mask)
    assert file.stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_digest_depends_on_text_names_types_shapes_and_values() -> None:
    tensors = {"a": torch.arange(4.0), "b": torch.ones(2, dtype=torch.bfloat16)}
    others = [
        ("other text", tensors),
        ("text", {"c": tensors["a"], "b": tensors["b"]}),
        ("text", {"a": tensors["a"].double(), "b": tensors["b"]}),
        ("text", {"a": tensors["a"].view(2, 2), "b": tensors["b"]}),
        ("text", {"a": tensors["a"] + 1, "b": tensors["b"]}),
    ]
    digests = {files.digest("text", tensors), *(files.digest(*other) for other in others)}
    assert len(digests) == 6
    assert files.digest("text", dict(reversed(tensors.items()))) == files.digest("text", tensors)


def held_open(new: Path) -> None:
    new.write_text("new")
    files.write_json(new.parents[1] / "other.json", {})  # sweeps the folder
    assert new.read_text() == "new"


def test_what_killed_writers_left_is_swept_by_the_next_one(model: Backbone, tmp_path: Path) -> None:
    done = processes.run([sys.executable, "-c", KILLED, "rename", str(tmp_path)])
    assert done.returncode == -signal.SIGKILL, done.stderr
    (left,) = tmp_path.iterdir()
    assert sum(file.stat().st_size for file in left.iterdir()) > 1000
    others = [".model.safetensors.backup", ".note.abcdefgh", ".vitrail-new", ".a.abcdefgh.vitrail-new"]  # not ours
    for name in others:
        (tmp_path / name).write_text("kept")
    files.write_atomically(tmp_path / "file", held_open)  # a writer that lives keeps its own
    assert sorted(item.name for item in tmp_path.iterdir()) == sorted([*others, "file", "other.json"])


@pytest.fixture
def special(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Paths that are not regular files."""
    made = {"pipe": tmp_path / "pipe.png", "folder": tmp_path / "folder.png", "socket": tmp_path / "socket.png"}
    os.mkfifo(made["pipe"])
    made["folder"].mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(tmp_path)  # names of sockets are short
        server.bind("socket.png")
    made["device"] = tmp_path / "device.png"
    made["device"].symlink_to("/dev/zero")
    return made


def test_only_regular_files_are_read(special: dict[str, Path], tmp_path: Path) -> None:
    for kind, path in special.items():
        with pytest.raises(OSError, match=kind) as caught:
            files.read_bytes(path)
        assert caught.value.filename == str(path)
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    assert files.read_bytes(tmp_path / "link") == b"abc"
    with pytest.raises(FileNotFoundError):
        files.read_bytes(tmp_path / "missing")
    with pytest.raises(OSError, match="null"):
        files.read_bytes(tmp_path / "a\0b")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.ENOMEM])
def test_a_fault_of_the_machine_is_not_one_of_the_file(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    (tmp_path / "file").write_bytes(b"abc")
    monkeypatch.setattr(files.os, "read", fails)
    with pytest.raises(DataError, match="machine"):  # and not an OSError, which would mean a broken image
        files.read_bytes(tmp_path / "file")


def test_files_are_read_up_to_a_limit(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"abcd")
    assert files.read_bytes(file, 4) == b"abcd"
    assert files.read_bytes("/proc/self/status").startswith(b"Name:")  # its size is said to be 0
    for path, limit in ((file, 3), (Path("/proc/self/status"), 8)):
        with pytest.raises(OSError, match="limit") as caught:
            files.read_bytes(path, limit)
        assert caught.value.errno == errno.EFBIG
    with file.open("wb") as opened:
        opened.truncate(1 << 40)  # a file with a hole takes no space
    with pytest.raises(OSError, match="limit"):
        files.read_bytes(file)


def test_texts_have_one_kind_of_line_end(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes("\ufeffa\r\nb\rç\n".encode())
    assert files.read_text(tmp_path / "text", encoding="utf-8-sig") == "a\nb\nç\n"


def test_names_that_no_file_can_have_are_no_files(tmp_path):
    (tmp_path / "a").write_text("")
    assert files.is_file(tmp_path / "a")
    assert not any(files.is_file(tmp_path / name) for name in ("b", "", "x" * 5000, "a\0b", "a/b"))


def test_a_temporary_folder_of_a_killed_writer_is_swept(tmp_path: Path) -> None:
    left = tmp_path / ".model.abcd1234.vitrail-new"
    left.mkdir()
    (left / "model.onnx").write_text("large")
    with files.temporary_folder(tmp_path / "model") as folder:
        (folder / "model.onnx").write_text("new")
        assert [item.name for item in tmp_path.iterdir()] == [folder.name]
    assert not list(tmp_path.iterdir())
