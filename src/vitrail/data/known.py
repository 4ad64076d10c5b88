"""Data sets known by name: fashion-mnist, mnist, cifar10, cifar100, from a folder or from where they are published."""

import contextlib
import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from vitrail.data.arrays import looks_like_arrays, read_arrays
from vitrail.data.cifar import looks_like_cifar, read_cifar
from vitrail.data.dataset import Found
from vitrail.errors import DataError, nearest

Progress = Callable[[str, int, int], None]  # the file's name, bytes done, bytes in all (0 where nobody says)

_CHUNK = 1 << 18
_TIMEOUT = 30.0  # seconds without a byte


@dataclass(frozen=True)
class Remote:
    """One file: its name, where it is published (tried in order), and its checksum as `md5:...` or `sha256:...`."""

    name: str
    addresses: tuple[str, ...]
    checksum: str


@dataclass(frozen=True)
class Known:
    """A data set with a name; `classes` are those of arrays, since pickles name their own."""

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


def cache_folder() -> Path:
    """Where downloads are kept: VITRAIL_CACHE, or vitrail in XDG_CACHE_HOME or ~/.cache."""
    if own := os.environ.get("VITRAIL_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "vitrail"


def read_known(name: str, *, folder: Path | None = None, progress: Progress | None = None) -> Found:
    """Train and test of a data set by its name: from a folder that has its files, or fetched into the cache."""
    if name not in KNOWN:
        raise DataError(f"there is no data set {name!r}; {nearest(name, KNOWN)}")
    known = KNOWN[name]
    if folder is None:
        folder = cache_folder() / "data" / name
        for remote in known.files:
            fetch(remote, folder, progress=progress)
    found = _read(folder, known)
    if known.classes and found.train.classes != known.classes:
        raise DataError(f"{folder} does not hold {known.title}: its classes are {', '.join(found.train.classes[:5])}")
    return found._replace(notes=(f"{known.title}.", *found.notes))


def _read(folder: Path, known: Known) -> Found:
    if looks_like_arrays(folder):
        return read_arrays(folder, classes=known.classes or None)
    archives = [folder / remote.name for remote in known.files if remote.name.endswith(".tar.gz")]
    for place in (folder, *archives):
        if looks_like_cifar(place):
            return read_cifar(place)
    names = ", ".join(remote.name for remote in known.files)
    raise DataError(f"{folder} has no files of {known.title}; expected: {names}")


def fetch(remote: Remote, folder: Path, *, progress: Progress | None = None) -> Path:
    """A published file in a folder: whole and verified, or not there at all; a broken download goes on where it was."""
    target = folder / remote.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder / f"{remote.name}.lock"):
            if target.exists():
                return target
            reasons = []
            for address in remote.addresses:
                try:
                    _download(address, target, remote, progress)
                    return target
                except (OSError, ValueError) as error:  # urllib's errors are OSErrors
                    reasons.append(f"{address}: {_reason(error)}")
    except OSError as error:
        raise DataError(f"{remote.name} cannot be stored in {folder}: {error.strerror or error}") from error
    raise DataError(
        f"{remote.name} could not be fetched ({'; '.join(reasons)}); try again, or fetch it by hand and name its folder"
    )


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error) or type(error).__name__


def _download(address: str, target: Path, remote: Remote, progress: Progress | None) -> None:
    part = target.with_name(f"{target.name}.part")
    resumed = part.exists() and part.stat().st_size > 0
    _receive(address, part, remote.name, progress)
    if not _fits(part, remote.checksum):
        part.unlink()
        if not resumed:
            raise ValueError(f"the checksum is not {remote.checksum}")
        # What was there before may have been of another file, or damaged: once more, from the start.
        _receive(address, part, remote.name, progress)
        if not _fits(part, remote.checksum):
            part.unlink()
            raise ValueError(f"the checksum is not {remote.checksum}")
    part.replace(target)


def _receive(address: str, part: Path, name: str, progress: Progress | None) -> None:
    """Appends to what is there, if the server can; else begins anew."""
    done = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={done}-"} if done else {}
    request = urllib.request.Request(address, headers=headers)  # noqa: S310  (addresses are those of the table)
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT)  # noqa: S310
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing is left to send: the part is whole, or longer than the file
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
        raise OSError(f"the connection broke after {done:,} of {total:,} bytes")


def _fits(path: Path, checksum: str) -> bool:
    kind, _, wanted = checksum.partition(":")
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest() == wanted


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Makes other processes wait that want the same file; where the system has no locks, the checksum must do."""
    try:
        import fcntl  # noqa: PLC0415  (not on Windows)
    except ImportError:
        yield
        return
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
