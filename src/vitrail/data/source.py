"""One door to all data: a name, a folder, a table, arrays, pickles or shards -> Splits."""

from pathlib import Path

from vitrail.data.arrays import looks_like_arrays, read_arrays
from vitrail.data.cifar import looks_like_cifar, read_cifar
from vitrail.data.dataset import Dataset, Found, Splits
from vitrail.data.embedded import NAMES, read_embedded
from vitrail.data.folder import read_folder
from vitrail.data.known import KNOWN, Progress, read_known
from vitrail.data.shards import find_shards, read_shards
from vitrail.data.split import align, check, complete
from vitrail.data.table import SUFFIXES as TABLES
from vitrail.data.table import read_table
from vitrail.errors import DataError
from vitrail.nearby import hint_at

_FILES = (*TABLES, ".npy", ".npz", ".tar")  # what files of data end in, beside CIFAR's pickles


def open_data(
    source: str | Path, *, val: str | Path | float | None = None, seed: int = 0, progress: Progress | None = None
) -> Splits:
    """Train, val and test of a source, ready to learn from; DataError in one sentence where no model could.

    A source is "demo", a known name such as "cifar10" ("cifar10:folder" where the files are there already), a folder
    of class folders, a CSV or JSONL table, .npy, .npz or idx arrays, CIFAR's pickles, or WebDataset shards. `val` is
    another source, or the share of train to validate on.
    """
    return check(survey(source, val=val, seed=seed, progress=progress))


def survey(
    source: str | Path, *, val: str | Path | float | None = None, seed: int = 0, progress: Progress | None = None
) -> Splits:
    """The same without the check, for those who look for what is wrong."""
    found = find(source, progress=progress)
    if isinstance(val, str | Path):
        other = open_whole(val, classes=found.train.classes, multi_label=found.train.multi_label, progress=progress)
        return complete(found, val=other, seed=seed)
    return complete(found, val=val, seed=seed)


def open_whole(
    source: str | Path,
    *,
    classes: tuple[str, ...] | None = None,
    multi_label: bool | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """What a source offers to evaluate on: its test part, else its validation part, else all of it.

    With `classes`, labels are counted by these, matched by name.
    """
    found = find(source, progress=progress)
    part = next(part for part in (found.test, found.val, found.train) if part is not None)
    if classes is None:
        return part
    return align(part, classes, multi_label=part.multi_label if multi_label is None else multi_label)


def find(source: str | Path, *, progress: Progress | None = None) -> Found:
    """What a source holds, as it stands."""
    text = str(source)
    if text in NAMES:
        return read_embedded()
    if text in KNOWN:
        return read_known(text, progress=progress)
    name, colon, folder = text.partition(":")
    if colon and name in KNOWN:
        return read_known(name, folder=_existing(Path(folder).expanduser()), progress=progress)
    if any(sign in text for sign in "{*") and text.endswith(".tar"):
        return read_shards(text)
    path = _existing(Path(source).expanduser())
    return _find_in_folder(path) if path.is_dir() else _find_in_file(path)


def _existing(path: Path) -> Path:
    if not path.exists():
        names = [*NAMES, *KNOWN]
        usual = f"give a folder of images, a table, arrays or shards, or a name: {', '.join(sorted(names))}"
        raise DataError(f"{path} does not exist; {hint_at(path, fits=_may_be_data, names=names) or usual}")
    return path


def _may_be_data(path: Path) -> bool:
    return path.is_dir() or path.suffix.lower() in _FILES


def _find_in_file(path: Path) -> Found:
    suffix = path.suffix.lower()
    if suffix in TABLES:
        return read_table(path)
    if suffix in (".npy", ".npz"):
        return read_arrays(path)
    if looks_like_cifar(path):
        return read_cifar(path)
    if suffix == ".tar":
        return read_shards(path)
    raise DataError(
        f"{path} is no data that can be read; give a folder of images, or a file that ends in {', '.join(_FILES)}"
    )


def _find_in_folder(path: Path) -> Found:
    if looks_like_cifar(path):
        return read_cifar(path)
    if looks_like_arrays(path):
        return read_arrays(path)
    if find_shards(path):
        return read_shards(path)
    return _beside_tables(path, [file for file in sorted(path.iterdir()) if file.suffix.lower() in TABLES])


def _beside_tables(path: Path, tables: list[Path]) -> Found:
    """A folder of images; where a table lies in it that may be what was meant, that is said."""
    if not tables:
        return read_folder(path)
    shown = ", ".join(str(table) for table in tables[:3])
    try:
        found = read_folder(path)
    except DataError as error:
        raise DataError(f"{error}; or point to the table in it that has the labels: {shown}") from error
    if len(found.train.classes) == 1:
        raise DataError(
            f"{path} has one class folder only, {found.train.classes[0]!r}, and a table beside it; if that has the "
            f"labels, point to it: {shown}"
        )
    note = f"Labels come from the names of folders; to take them from a table, point to it: {shown}."
    return found._replace(notes=(*found.notes, note))
