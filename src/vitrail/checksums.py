"""SHA256SUMS: the checksums of the files of a run or an export, in one file that `sha256sum -c` reads, too.

They find damage, and files that do not belong together. They are not a signature: whoever can change a file can
change them, too.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from vitrail.errors import CheckpointError, WriteError
from vitrail.files import open_regular, write_atomically

FILE = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64}) [ *]([^/\\\x00-\x1f]{1,255})")
_LIMIT = 1 << 20  # bytes


def write_checksums(folder: Path, names: Iterable[str], *, kept: Mapping[str, str] | None = None) -> Path:
    """Writes the checksums of those files of a folder that exist, and those that are known of others."""
    found = {**(kept or {}), **{name: digest_of(folder / name) for name in names if (folder / name).is_file()}}
    lines = [f"{digest}  {name}\n" for name, digest in sorted(found.items()) if (folder / name).is_file()]
    write_atomically(folder / FILE, lambda new: new.write_text("".join(lines), encoding="utf-8"))
    return folder / FILE


def remove_checksums(folder: Path) -> None:
    """Removes the checksums of a folder whose files are about to change; an interrupted save then has none."""
    try:
        (folder / FILE).unlink(missing_ok=True)
    except NotADirectoryError:  # there is no folder, and no checksums; whoever writes next says so
        return
    except OSError as error:
        raise WriteError(f"cannot remove {folder / FILE}: {error.strerror}") from error


def read_checksums(folder: Path) -> dict[str, str]:
    """The checksums of a folder by the names of its files; empty where it has none."""
    file = folder / FILE
    if not file.is_file():
        return {}
    with open_regular(file) as opened:
        data = opened.read(_LIMIT + 1)
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        lines = [""]
    found = [_LINE.fullmatch(line) for line in lines]
    known = {match[2]: match[1] for match in found if match is not None}
    if len(data) > _LIMIT or len(known) != len(lines):
        raise CheckpointError(f"{file} is damaged; write it again: vitrail verify {folder} --accept")
    return known


def digest_of(file: Path) -> str:
    """The SHA-256 of a file, as hexadecimal digits."""
    with open_regular(file) as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()  # type: ignore[arg-type]  # it has readinto


def check_file(file: Path, *, data: bytes | None = None) -> bool:
    """Whether a file is among the checksums of its folder; CheckpointError where its content is not what they say.

    `data` is the content, where it was read already.
    """
    expected = read_checksums(file.parent).get(file.name)
    if expected is None:
        return False
    if expected != (digest_of(file) if data is None else hashlib.sha256(data).hexdigest()):
        raise CheckpointError(
            f"{file} was changed after it was written: its SHA-256 is not the one in {FILE}. Restore the file, or "
            f"accept the change: vitrail verify {file.parent} --accept"
        )
    return True
