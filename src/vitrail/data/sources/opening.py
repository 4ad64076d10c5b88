"""Opens any dataset: a name, a folder, a table, arrays, pickles or shards -> Splits."""

from pathlib import Path

from vitrail.data.dataset import Dataset, Found, Splits
from vitrail.data.findings import NO_FINDINGS
from vitrail.data.grouping import with_groups
from vitrail.data.sources.arrays import looks_like_arrays, read_arrays
from vitrail.data.sources.catalogue import KNOWN, Progress, read_known
from vitrail.data.sources.cifar import looks_like_cifar, read_cifar
from vitrail.data.sources.embedded import NAMES, read_embedded
from vitrail.data.sources.folder import Scan, read_folder, scan
from vitrail.data.sources.positions import missing, read_positions, read_positions_file
from vitrail.data.sources.rendered import NAME, is_scenes, read_scenes
from vitrail.data.sources.shards import find_shards, read_shards
from vitrail.data.sources.table import SUFFIXES as TABLES
from vitrail.data.sources.table import Wanted, read_table
from vitrail.data.split import align, check, complete
from vitrail.data.targets import Schema
from vitrail.errors import DataError
from vitrail.suggest import suggest_path

_FILES = (*TABLES, ".npy", ".npz", ".tar", ".json", ".yaml")  # suffixes of data files, besides CIFAR's pickles
ANY = Wanted()


def open_data(
    source: str | Path, *, val: str | Path | float | None = None, seed: int = 0, wanted: Wanted = ANY,
    progress: Progress | None = None,
) -> Splits:  # fmt: skip
    """Train, val and test of a source, ready for training; DataError if no model could learn from it.

    A source is "demo", "scenes" (rendered), a known name such as "cifar10" ("cifar10:folder" if its files are in that
    folder), a folder of class folders or of unlabelled images, of boxes (COCO, Pascal VOC, YOLO), masks or depth maps,
    a CSV or JSONL table, .npy, .npz or idx arrays, CIFAR's pickles, or WebDataset shards. `val` is another source, or
    the share of train to validate on. `wanted` names the table columns that hold the target, and the kinds of target
    that a task can use.
    """
    return check(survey(source, val=val, seed=seed, wanted=wanted, progress=progress))


def survey(
    source: str | Path, *, val: str | Path | float | None = None, seed: int = 0, wanted: Wanted = ANY,
    progress: Progress | None = None,
) -> Splits:  # fmt: skip
    """The same without the check, for an audit."""
    found = find(source, wanted=wanted, progress=progress)
    if wanted.group is not None:
        if isinstance(val, str | Path):
            raise DataError(f"--group decides which images validate, so --val {val} cannot be used; leave one out")
        found = with_groups(found, wanted.group)
    if isinstance(val, str | Path):
        own = wanted if _is_table(val) else wanted._replace(columns=())
        other = open_whole(val, schema=found.train.schema, wanted=own, progress=progress)
        return complete(found, val=other, seed=seed, fold=wanted.fold)
    return complete(found, val=val, seed=seed, fold=wanted.fold)


def open_whole(
    source: str | Path, *, schema: Schema | None = None, wanted: Wanted = ANY, progress: Progress | None = None
) -> Dataset:
    """The evaluation images of a source: its test split, else its validation split, else all of it.

    With a `schema`, the targets are aligned to it, matched by name.
    """
    found = find(source, wanted=wanted, progress=progress)
    part = next(part for part in (found.test, found.val, found.train) if part is not None)
    return part if schema is None else align(part, schema)


def find(source: str | Path, *, wanted: Wanted = ANY, progress: Progress | None = None) -> Found:
    """The splits that a source has."""
    text = str(source)
    if wanted.columns and not _is_table(source):
        raise DataError(f"{text} is not a table, so it has no column {wanted.columns[0]!r}; leave out --label")
    if text in NAMES:
        return read_embedded()
    if is_scenes(text):
        return read_scenes(text, wanted)
    if text in KNOWN:
        return read_known(text, progress=progress)
    name, colon, folder = text.partition(":")
    if colon and name in KNOWN:
        return read_known(name, folder=_existing(Path(folder).expanduser()), progress=progress)
    if any(sign in text for sign in "{*") and text.endswith(".tar"):
        return read_shards(text)
    path = _existing(Path(source).expanduser())
    return _find_in_folder(path, wanted) if path.is_dir() else _find_in_file(path, wanted)


def _existing(path: Path) -> Path:
    if not path.exists():
        names = [*NAMES, NAME, *KNOWN]
        allowed = f"expected a folder of images, a table, arrays, shards, or one of {', '.join(sorted(names))}"
        raise DataError(f"{path} does not exist; {suggest_path(path, fits=_may_be_data, names=names) or allowed}")
    return path


def _is_table(source: str | Path) -> bool:
    return Path(source).suffix.lower() in TABLES


def _may_be_data(path: Path) -> bool:
    return path.is_dir() or path.suffix.lower() in _FILES


def _find_in_file(path: Path, wanted: Wanted) -> Found:
    suffix = path.suffix.lower()
    if suffix in TABLES:
        return read_table(path, wanted)
    if suffix in (".npy", ".npz"):
        return read_arrays(path)
    if looks_like_cifar(path):
        return read_cifar(path)
    if suffix == ".tar":
        return read_shards(path)
    if (positions := read_positions_file(path)) is not None:
        return positions
    raise DataError(
        f"{path} is not a supported dataset; give a folder of images, or a file that ends in {', '.join(_FILES)}"
    )


def _find_in_folder(path: Path, wanted: Wanted) -> Found:
    if looks_like_cifar(path):
        return read_cifar(path)
    if looks_like_arrays(path):
        return read_arrays(path)
    if find_shards(path):
        return read_shards(path)
    scanned = scan(path)
    if (found := read_positions(path, wanted.kinds, scanned)) is not None:
        # Those who learn from images alone need not correct annotations.
        return found if wanted.targets else found._replace(findings=NO_FINDINGS)
    tables = [file for file in sorted(path.iterdir()) if file.suffix.lower() in TABLES]
    if not tables and scanned.images and (reason := missing(path, wanted.kinds, scanned)) is not None:
        raise DataError(reason)
    return _beside_tables(path, scanned, tables)


def _beside_tables(path: Path, scanned: Scan, tables: list[Path]) -> Found:
    """A folder of images and tables; DataError or a note if a table may be what the user meant."""
    if not tables:
        return read_folder(path, scanned)
    shown = ", ".join(str(table) for table in tables[:3])
    try:
        found = read_folder(path, scanned)
    except DataError as error:
        raise DataError(f"{error}; if a table has the labels, give its path: {shown}") from error
    classes = getattr(found.train.schema.get("label"), "classes", ())
    if len(classes) < 2:
        what = f"only one class folder, {classes[0]!r}," if classes else "no class folders"
        raise DataError(
            f"{path} has {what} and a table beside the images; if it has the labels, give its path: {shown}"
        )
    note = f"Labels come from folder names; to use those of a table, give its path: {shown}."
    return found._replace(notes=(*found.notes, note))
