"""Datasets known by name: fashion-mnist, mnist, cifar10, cifar100, from a folder or downloaded."""

import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vitrail.data.dataset import Found
from vitrail.data.sources.arrays import looks_like_arrays, read_arrays
from vitrail.data.sources.cifar import looks_like_cifar, read_cifar
from vitrail.errors import DataError, nearest, reason
from vitrail.locks import locked

Progress = Callable[[str, int, int], None]  # file name, bytes done, bytes in total (0 if unknown)

_CHUNK = 1 << 18
_TIMEOUT = 30.0  # seconds without a byte


@dataclass(frozen=True)
class Remote:
    """One file: its name, its URLs (tried in order), and its checksum as `md5:...` or `sha256:...`."""

    name: str
    addresses: tuple[str, ...]
    checksum: str


@dataclass(frozen=True)
class Known:
    """A dataset with a name; `classes` are for arrays, since pickles contain theirs."""

    title: str
    files: tuple[Remote, ...]
    classes: tuple[str, ...] = ()


_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_MNIST = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")
_CIFAR = "https://www.cs.toronto.edu/~kriz/"


def _idx(hosts: tuple[str, ...], sums: tuple[str, str, str, str]) -> tuple[Remote, ...]:
    names = [f"{split}-{what}-ubyte.gz" for split in ("train", "t10k") for what in ("images-idx3", "labels-idx1")]
    return tuple(
        Remote(name, tuple(host + name for host in hosts), checksum) for name, checksum in zip(names, sums, strict=True)
    )


KNOWN = {
    "fashion-mnist": Known(
        "Fashion-MNIST (arXiv:1708.07747; MIT)",
        _idx(
            (_FASHION,),
            (
                "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "md5:25c81989df183df01b3e8a0aad5dffbe",
                "md5:bef4ecab320f06d8554ea6380940ec79",
                "md5:bb300cfdad3c16e7a12a480ee83cd310",
            ),
        ),
        (
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ),
    ),
    "mnist": Known(
        "MNIST (LeCun, Cortes, Burges)",
        _idx(
            _MNIST,
            (
                "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "md5:d53e105ee54ea40749a09fcbcd1e9432",
                "md5:9fb629c4189551a2d022fa330f9573f3",
                "md5:ec29112dd5afa0611ce80d1b7f02629c",
            ),
        ),
        tuple("0123456789"),
    ),
    "cifar10": Known(
        "CIFAR-10 (Krizhevsky, 2009)",
        (
            Remote(
                "cifar-10-python.tar.gz",
                (_CIFAR + "cifar-10-python.tar.gz",),
                "md5:c58f30108f718f92721af3b95e74349a",
            ),
        ),
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    ),
    "cifar100": Known(
        "CIFAR-100, fine labels (Krizhevsky, 2009)",
        (
            Remote(
                "cifar-100-python.tar.gz",
                (_CIFAR + "cifar-100-python.tar.gz",),
                "md5:eb9058c3a382ffc7106e4002c42a8d85",
            ),
        ),
    ),
}


_ARRAYS = tuple(f"{part}_{kind}.npy" for part in ("train", "test") for kind in ("images", "labels"))


def cache_folder() -> Path:
    """The cache folder: VITRAIL_CACHE, or vitrail in XDG_CACHE_HOME or ~/.cache."""
    if own := os.environ.get("VITRAIL_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "vitrail"


def read_known(name: str, *, folder: Path | None = None, progress: Progress | None = None) -> Found:
    """Train and test of a dataset by name, from a folder with its files or downloaded into the cache.

    Nothing is downloaded where the cache has train_images.npy, train_labels.npy, test_images.npy and test_labels.npy.
    """
    if name not in KNOWN:
        raise DataError(f"unknown dataset {name!r}; {nearest(name, KNOWN)}")
    known = KNOWN[name]
    if folder is None:
        folder = cache_folder() / "data" / name
        if not all((folder / file).is_file() for file in _ARRAYS):
            for remote in known.files:
                fetch(remote, folder, progress=progress)
    found = _read(folder, known)
    classes = getattr(found.train.schema.get("label"), "classes", ())
    if known.classes and classes != known.classes:
        raise DataError(f"{folder} is not {known.title}: its classes are {', '.join(classes[:5])}")
    return found._replace(notes=(f"{known.title}.", *found.notes))


def _read(folder: Path, known: Known) -> Found:
    if looks_like_arrays(folder):
        return read_arrays(folder, classes=known.classes or None)
    archives = [folder / remote.name for remote in known.files if remote.name.endswith(".tar.gz")]
    for path in (folder, *archives):
        if looks_like_cifar(path):
            return read_cifar(path)
    names = ", ".join(remote.name for remote in known.files)
    raise DataError(f"{folder} has no files of {known.title}; expected: {names}")


def fetch(remote: Remote, folder: Path, *, progress: Progress | None = None) -> Path:
    """Downloads a file into a folder and verifies it; an interrupted download is resumed."""
    target = folder / remote.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / f".{remote.name}.lock", what=str(target), wait=True):
            if target.exists():
                return target
            reasons = []
            for address in remote.addresses:
                try:
                    _download(address, target, remote, progress)
                    return target
                except (OSError, ValueError) as error:  # urllib's errors are OSErrors
                    reasons.append(f"{address}: {_why(error)}")
    except OSError as error:
        raise DataError(f"cannot write {remote.name} to {folder}: {error.strerror or error}") from error
    raise DataError(
        f"cannot download {remote.name} ({'; '.join(reasons)}); try again, or put the file into {folder} yourself"
    )


def _why(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return reason(error)


def _download(address: str, target: Path, remote: Remote, progress: Progress | None) -> None:
    part = target.with_name(f"{target.name}.part")
    resumed = part.exists() and part.stat().st_size > 0
    _receive(address, part, remote.name, progress)
    if not _fits(part, remote.checksum):
        part.unlink()
        if not resumed:
            raise ValueError(f"wrong checksum, expected {remote.checksum}")
        # The resumed part may be damaged or of another file: once more from the start.
        _receive(address, part, remote.name, progress)
        if not _fits(part, remote.checksum):
            part.unlink()
            raise ValueError(f"wrong checksum, expected {remote.checksum}")
    part.replace(target)


def _receive(address: str, part: Path, name: str, progress: Progress | None) -> None:
    """Appends to the partial file if the server supports it; otherwise starts again."""
    done = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={done}-"} if done else {}
    request = urllib.request.Request(address, headers=headers)  # noqa: S310  (addresses come from the table above)
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT)  # noqa: S310
    except urllib.error.HTTPError as error:
        if error.code == 416:  # range not satisfiable: the part is complete, or longer than the file
            error.close()
            return
        raise
    with answer:
        if done and answer.status != 206:
            done = 0
        total = done + int(answer.headers.get("Content-Length") or 0)
        with part.open("ab" if done else "wb") as file:
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(name, done, total)
    if done < total:
        raise OSError(f"the connection was lost after {done:,} of {total:,} bytes")


def _fits(path: Path, checksum: str) -> bool:
    kind, _, wanted = checksum.partition(":")
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest() == wanted
