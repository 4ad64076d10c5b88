"""Images that belong together, such as those of one patient: the group of each, and parts that keep groups whole."""

import hashlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from vitrail.data.audit.duplicates import Print, exact_groups, fingerprint, near_pairs
from vitrail.data.dataset import Dataset, Found
from vitrail.errors import BrokenImage, DataError, listed

Places = np.ndarray[tuple[int], np.dtype[np.int64]]
DUPLICATES = "duplicates"  # the rule that groups images which are copies of each other


def with_groups(found: Found, rule: str) -> Found:
    """The same splits, with the group of each image by a rule, and a note.

    The rule is the name of a table's column, which is read with the table; "duplicates"; or a regular expression that
    finds the group in an image's relative path: its first parenthesis, else all that it matches.
    """
    parts = [part for part in (found.train, found.val, found.test) if part is not None]
    if found.train.groups is not None:
        how = f"the column {rule!r}"
    elif rule == DUPLICATES:
        how = "copies and near-duplicates of an image"
        _set_groups(parts, _copies(parts))
    else:
        how = f"the pattern {rule!r} in the path"
        _set_groups(parts, [name for part in parts for name in _matches(part, rule)])
    sizes = Counter(name for part in parts for name in part.groups or ())
    several = sum(count > 1 for count in sizes.values())
    note = f"Groups by {how}: {len(sizes):,}, of which {several:,} have several images; no group is in two splits."
    return found._replace(notes=(*found.notes, note))


def _set_groups(parts: Sequence[Dataset], names: Sequence[str]) -> None:
    start = 0
    for part in parts:
        part.groups = list(names[start : start + len(part)])
        start += len(part)


def _matches(part: Dataset, rule: str) -> list[str]:
    try:
        pattern = re.compile(rule)
    except re.error as error:
        raise DataError(
            f"--group {rule} is neither a column of the data nor a valid regular expression ({error}); name a column "
            f"of the table, a pattern of the file names, or {DUPLICATES}"
        ) from error
    found = [pattern.search(part.key(index)) for index in range(len(part))]
    missing = [part.key(index) for index, match in enumerate(found) if match is None or not _name(match)]
    if missing:
        raise DataError(
            f"--group {rule} is not a column of {part.name}, and as a pattern finds nothing in {listed(missing, 3)}; "
            f"name a column of the table, a pattern that fits every path, or {DUPLICATES}"
        )
    return [_name(match) for match in found if match is not None]


def _name(match: re.Match[str]) -> str:
    return (match.group(1) if match.re.groups else match.group()) or ""


def _copies(parts: Sequence[Dataset]) -> list[str]:
    """A name for each image: that of the first one that it is a copy of, over some steps perhaps."""
    work = [(part, index) for part in parts for index in range(len(part))]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        prints = list(pool.map(_print, work))
    first = list(range(len(work)))

    def root(index: int) -> int:
        while first[index] != index:
            first[index] = first[first[index]]
            index = first[index]
        return index

    pairs = [(group[0], other) for group in exact_groups(prints) for other in group[1:]]
    for one, other in (*pairs, *near_pairs(prints)):
        low, high = sorted((root(one), root(other)))
        first[high] = low
    return [work[root(index)][0].where(work[root(index)][1]) for index in range(len(work))]


def _print(work: tuple[Dataset, int]) -> Print | None:
    part, index = work
    try:
        return fingerprint(part.read(index))
    except BrokenImage:
        return None


def refuse_shared(parts: dict[str, Dataset]) -> None:
    """DataError where a group is in two splits."""
    seen: dict[str, str] = {}
    for split, part in parts.items():
        for name in dict.fromkeys(part.groups or ()):
            if seen.setdefault(name, split) != split:
                raise DataError(
                    f"the group {name!r} is in both {seen[name]} and {split}, so the score would be too good; move its "
                    "images into one split, or remove the splits from the data, so that groups are split here"
                )


def group_parts(groups: Sequence[str], strata: Sequence[int], shares: Sequence[float], seed: int) -> Places:
    """The part of each of N images, so that no group is in two and each part has about its share of each stratum.

    Groups go one after the other, the largest first, to the part that they fit best; a stratum that is in as many
    groups as there are parts is in all of them.
    """
    numbers = {name: number for number, name in enumerate(dict.fromkeys(groups))}
    owners = np.array([numbers[name] for name in groups])
    kinds, columns = np.unique(np.asarray(strata), return_inverse=True)
    # How many images each group has of each stratum that it has: a table of both would not fit into memory.
    pairs, counts = np.unique(owners * len(kinds) + columns, return_counts=True)
    group, column = np.divmod(pairs, len(kinds))
    starts = np.searchsorted(group, np.arange(len(numbers) + 1))
    total = np.bincount(columns).astype(np.float64)  # S
    wanted = np.asarray(shares)[:, None] * total  # P S
    have = np.zeros_like(wanted)
    sizes, place = np.bincount(owners), np.zeros(len(numbers), dtype=np.int64)
    for name in sorted(numbers, key=lambda name: (-sizes[numbers[name]], _hash(seed, name))):
        span = slice(starts[numbers[name]], starts[numbers[name] + 1])
        own, at = counts[span], column[span]
        cost = (
            own * (own + 2 * (have[:, at] - wanted[:, at])) / (wanted[:, at] * total[at])
        )  # rise of the squared error
        best = int(cost.sum(axis=1).argmin())
        place[numbers[name]] = best
        have[best, at] += own
    order = np.argsort(column, kind="stable")
    for stratum in total.argsort():  # the rarest first
        first, last = np.searchsorted(column, (stratum, stratum + 1), sorter=order)
        _fill(group[order[first:last]], sizes, place, len(shares))
    return place[owners]


def _hash(seed: int, name: str) -> bytes:
    return hashlib.sha256(f"{seed}:{name}".encode("utf-8", "surrogateescape")).digest()


def _fill(members: Places, sizes: Places, place: Places, parts: int) -> None:
    """Moves the smallest of the groups that have a stratum into each part that lacks it, from one with several."""
    for part in range(parts):
        present = np.bincount(place[members], minlength=parts)
        if present[part]:
            continue
        spare = members[present[place[members]] > 1]
        if len(spare):
            place[spare[sizes[spare].argmin()]] = part


def rare_in_groups(groups: Sequence[str], strata: Sequence[int], needed: int) -> tuple[int, int] | None:
    """The first stratum that is in fewer groups than needed, and in how many; None where there is none."""
    found: dict[int, set[str]] = defaultdict(set)
    for name, stratum in zip(groups, strata, strict=True):
        found[stratum].add(name)
    return next(((stratum, len(names)) for stratum, names in sorted(found.items()) if len(names) < needed), None)
