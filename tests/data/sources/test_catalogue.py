"""Known data sets: fetched from a server on this machine, verified, resumed, and never half there."""

import gzip
import hashlib
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from support.single_target import classes

from vitrail.data.sources import catalogue
from vitrail.data.sources.catalogue import KNOWN, Known, Remote, cache_folder, fetch, read_known
from vitrail.errors import DataError

CONTENT = np.random.default_rng(0).bytes(600_000)


class Server(ThreadingHTTPServer):
    """Serves bytes by name; can refuse ranges, and can break off."""

    def __init__(self):
        self.files, self.log, self.ranges, self.break_after = {"/file.gz": CONTENT}, [], True, None
        super().__init__(("127.0.0.1", 0), Handler)

    def address(self, name):
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        asked = self.headers.get("Range")
        self.server.log.append((self.path, asked))
        data = self.server.files.get(self.path)
        if data is None:
            return self.send_error(404)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.server.ranges else 0
        if start >= len(data):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        end = len(data) if self.server.break_after is None else start + self.server.break_after
        self.wfile.write(data[start:end])
        return None

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def remote(server, checksum=None, name="file.gz") -> Remote:
    return Remote(name, (server.address(name),), checksum or f"md5:{hashlib.md5(CONTENT).hexdigest()}")


def test_fetch_verifies_and_reports(server, tmp_path):
    steps = []
    path = fetch(remote(server), tmp_path / "new", progress=lambda *step: steps.append(step))
    assert path.read_bytes() == CONTENT
    assert steps[-1] == ("file.gz", len(CONTENT), len(CONTENT))
    assert len(steps) > 1
    assert not path.with_name("file.gz.part").exists()
    fetch(remote(server), tmp_path / "new")
    assert len(server.log) == 1


def test_sha256_is_verified_too(server, tmp_path):
    path = fetch(remote(server, f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"), tmp_path)
    assert path.read_bytes() == CONTENT


def test_a_broken_connection_is_resumed(server, tmp_path):
    server.break_after = 250_000
    with pytest.raises(DataError, match=r"250,000 of 600,000 bytes"):
        fetch(remote(server), tmp_path)
    assert not (tmp_path / "file.gz").exists()
    server.break_after = None
    assert fetch(remote(server), tmp_path).read_bytes() == CONTENT
    assert server.log[-1][1] == "bytes=250000-"


@pytest.mark.parametrize("part", [CONTENT[:1000], b"other" * 100, CONTENT, CONTENT + b"more"])
@pytest.mark.parametrize("ranges", [True, False])
def test_whatever_is_left_over_the_file_becomes_right(server, tmp_path, part, ranges):
    server.ranges = ranges
    (tmp_path / "file.gz.part").write_bytes(part)
    assert fetch(remote(server), tmp_path).read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing(server, tmp_path):
    with pytest.raises(DataError, match="md5:0000"):
        fetch(remote(server, "md5:" + "0" * 32), tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_next_address_is_tried(server, tmp_path):
    one = remote(server)
    two = Remote(one.name, ("http://127.0.0.1:9/file.gz", server.address("nothing"), *one.addresses), one.checksum)
    assert fetch(two, tmp_path).read_bytes() == CONTENT


def test_all_reasons_are_told(server, tmp_path):
    one = Remote("file.gz", (server.address("nothing"), "http://127.0.0.1:9/file.gz"), "md5:0")
    with pytest.raises(DataError, match=r"404.*http://127.0.0.1:9/file.gz"):
        fetch(one, tmp_path)


def test_a_folder_that_cannot_be_written(server, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"file.gz"):
        fetch(remote(server), tmp_path / "file")


def test_two_at_once_fetch_once(server, tmp_path):
    threads = [threading.Thread(target=fetch, args=(remote(server), tmp_path)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.log) == 1


def idx(array) -> bytes:
    header = b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(header + array.tobytes(), mtime=0)


def small_mnist(count=20):
    images = np.random.default_rng(1).integers(0, 256, (count, 28, 28), dtype=np.uint8)
    labels = (np.arange(count) % 10).astype(np.uint8)
    return {
        f"{split}-{what}-ubyte.gz": idx(array)
        for split in ("train", "t10k")
        for what, array in (("images-idx3", images), ("labels-idx1", labels))
    }


def test_a_name_fetches_into_the_cache(server, tmp_path, monkeypatch):
    files = small_mnist()
    server.files |= {f"/{name}": data for name, data in files.items()}
    remotes = tuple(
        Remote(name, (server.address(name),), f"md5:{hashlib.md5(data).hexdigest()}") for name, data in files.items()
    )
    monkeypatch.setitem(catalogue.KNOWN, "mnist", Known("small", remotes, tuple("0123456789")))
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    found = read_known("mnist")
    assert (len(found.train), len(found.test)) == (20, 20)
    assert (tmp_path / "data" / "mnist" / "t10k-labels-idx1-ubyte.gz").exists()
    asked = len(server.log)
    read_known("mnist")
    assert len(server.log) == asked == 4


def test_a_folder_that_has_the_files(tmp_path):
    for name, data in small_mnist().items():
        (tmp_path / name).write_bytes(data)
    assert classes(read_known("fashion-mnist", folder=tmp_path).train)[9] == "Ankle boot"


def test_cifar_arrays_get_their_names(tmp_path):
    for split in ("train", "test"):
        np.save(tmp_path / f"{split}_images.npy", np.zeros((10, 32, 32, 3), dtype=np.uint8))
        np.save(tmp_path / f"{split}_labels.npy", np.arange(10))
    assert classes(read_known("cifar10", folder=tmp_path).train)[3] == "cat"


def test_arrays_in_the_cache_are_read_without_a_network(tmp_path, monkeypatch):
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    monkeypatch.setattr(catalogue, "fetch", lambda *given, **how: pytest.fail("it was fetched"))
    folder = tmp_path / "data" / "cifar10"
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        np.save(folder / f"{split}_images.npy", np.zeros((10, 32, 32, 3), dtype=np.uint8))
        np.save(folder / f"{split}_labels.npy", np.arange(10))
    assert len(read_known("cifar10").test) == 10


def test_wrong_names_and_folders(tmp_path):
    with pytest.raises(DataError, match=r"'cifar-10'.*'cifar10'"):
        read_known("cifar-10")
    with pytest.raises(DataError, match=r"CIFAR-10.*cifar-10-python.tar.gz"):
        read_known("cifar10", folder=tmp_path)


def test_where_the_cache_lies(monkeypatch, tmp_path):
    monkeypatch.delenv("VITRAIL_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert str(cache_folder()) == "/home/someone/.cache/vitrail"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "vitrail"
    monkeypatch.setenv("VITRAIL_CACHE", "~/mine")
    assert str(cache_folder()) == "/home/someone/mine"


def test_the_table_is_complete():
    assert set(KNOWN) == {"fashion-mnist", "mnist", "cifar10", "cifar100"}
    for entry in KNOWN.values():
        for file in entry.files:
            assert file.checksum.startswith("md5:")
            assert len(file.checksum) == 36
            assert all(address.endswith(file.name) for address in file.addresses)
