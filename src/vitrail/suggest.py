"""Suggestions for paths that do not exist."""

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path

_LISTED = 5  # names, if none is similar


def suggest_path(path: Path, *, fits: Callable[[Path], bool], names: Iterable[str] = ()) -> str | None:
    """A hint for a path that does not exist: the most similar path, or the content of its folder; None without either.

    `fits` filters the candidates; a path of a single word may also be one of `names`.
    """
    if (near := nearest_path(path, fits=fits, names=names)) is not None:
        return f"did you mean {near!r}?"
    if _is_word(path) or not (others := sorted(item.name for item in _inside(path.parent) if fits(item))):
        return None
    return f"{path.parent} contains {', '.join(others[:_LISTED])}" + (", …" if len(others) > _LISTED else "")


def nearest_path(path: Path, *, fits: Callable[[Path], bool], names: Iterable[str] = ()) -> str | None:
    """The existing path that is most similar, matched folder by folder: run/demp -> runs/demo."""
    folder, parts = Path(path.anchor), path.parts[bool(path.anchor) :]
    for part in parts[:-1]:
        folders = [item.name for item in _inside(folder) if item.is_dir()]
        match = part if (folder / part).is_dir() else _closest(part, folders)
        if match is None:
            return None
        folder /= match
    candidates = {name: name for name in names} if _is_word(path) else {}
    candidates |= {item.name: str(item) for item in _inside(folder) if fits(item)}
    best = _closest(path.name, candidates)
    return None if best is None else candidates[best]


def _is_word(path: Path) -> bool:
    return path.name == str(path)


def _inside(folder: Path) -> list[Path]:
    """The content of a folder without hidden files; empty if it cannot be read."""
    try:
        return [item for item in folder.iterdir() if not item.name.startswith(".")]
    except OSError:
        return []


def _closest(name: str, known: Iterable[str]) -> str | None:
    """The first name that starts like this, or the most similar one, ignoring case."""
    folded, name = {one.casefold(): one for one in known}, name.casefold()
    longer = [one for one in folded if len(name) > 2 and one.startswith(name)]
    close = longer or difflib.get_close_matches(name, sorted(folded), n=1)
    return folded[close[0]] if close else None
