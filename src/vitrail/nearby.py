"""Paths that are not there, and what a person may have meant by them."""

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path

_LISTED = 5  # names, where none is near


def hint_at(path: Path, *, fits: Callable[[Path], bool], names: Iterable[str] = ()) -> str | None:
    """The end of a sentence about a path that is not there: the nearest that is, or what its folder holds instead.

    `fits` tells what could be meant at all; a path of one word may stand for one of `names` as well. None where there
    is nothing to say.
    """
    if (near := nearest_place(path, fits=fits, names=names)) is not None:
        return f"did you mean {near!r}?"
    if _is_word(path) or not (others := sorted(item.name for item in _inside(path.parent) if fits(item))):
        return None
    return f"{path.parent} holds {', '.join(others[:_LISTED])}" + (", …" if len(others) > _LISTED else "")


def nearest_place(path: Path, *, fits: Callable[[Path], bool], names: Iterable[str] = ()) -> str | None:
    """The path that is there and nearest to one that is not, found step by step: run/demp -> runs/demo."""
    place, steps = Path(path.anchor), path.parts[bool(path.anchor) :]
    for step in steps[:-1]:
        folders = [item.name for item in _inside(place) if item.is_dir()]
        known = step if (place / step).is_dir() else _closest(step, folders)
        if known is None:
            return None
        place /= known
    found = {name: name for name in names} if _is_word(path) else {}
    found |= {item.name: str(item) for item in _inside(place) if fits(item)}
    meant = _closest(path.name, found)
    return None if meant is None else found[meant]


def _is_word(path: Path) -> bool:
    return path.name == str(path)


def _inside(folder: Path) -> list[Path]:
    """What lies in a folder, without what is hidden; nothing where nobody may look, or where no folder is."""
    try:
        return [item for item in folder.iterdir() if not item.name.startswith(".")]
    except OSError:
        return []


def _closest(name: str, known: Iterable[str]) -> str | None:
    """The name that is most alike, whatever the case of its letters."""
    folded = {one.casefold(): one for one in sorted(known)}
    close = difflib.get_close_matches(name.casefold(), list(folded), n=1)
    return folded[close[0]] if close else None
