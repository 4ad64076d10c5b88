"""Splits: a validation split carved out of the training data, folds held out, targets aligned, gaps refused."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence

from vitrail.data.dataset import Dataset, Found, Joined, RandomSubset, Retargeted, Splits
from vitrail.data.grouping import group_parts, rare_in_groups, refuse_shared
from vitrail.data.targets import ClassTarget, Schema
from vitrail.errors import DataError

VAL_SHARE = 0.1


def complete(found: Found, *, val: Dataset | float | None, seed: int, fold: tuple[int, int] | None = None) -> Splits:
    """The splits of a source; if it has no validation split, one is carved out of train.

    `fold` (i, k) holds the i-th of k parts of train out as the test split, which chooses nothing.
    """
    train, test = found.train, found.test
    notes = [*found.notes, *(note for target in train.schema.values() for note in target.notes())]
    why = "" if val is not None else ", because the data has no validation split"
    if found.val is not None and isinstance(val, float):
        train = Joined(*_aligned(train, found.val, None)[:2])
        why = f"; the data's own validation split ({len(found.val):,} images) joins training"
    if fold is not None:
        whole = len(train)
        train, test = hold_out(train, fold, seed)
        own = "" if found.test is None else f" The data's own test split ({len(found.test):,} images) is not used."
        notes.append(f"Fold {fold[0]} of {fold[1]}: {len(test):,} of {whole:,} images are held out for the test.{own}")
    if isinstance(val, Dataset):
        held = val
        notes.append(f"Validation images come from {val.name}.")
        if found.val is not None:
            notes.append(f"The validation split of {train.name} ({len(found.val):,} images) is not used.")
    elif found.val is not None and val is None:
        held = found.val
    else:
        whole, share = len(train), VAL_SHARE if val is None else val
        train, held = carve(train, share, seed)
        notes.append(_carved_note(held, whole, share, why))
    refuse_shared({"train": train, "val": held} | ({} if test is None else {"test": test}))
    return Splits(*_aligned(train, held, test), notes=tuple(notes), empty=found.empty, findings=found.findings)


def _carved_note(held: Dataset, whole: int, share: float, why: str) -> str:
    """What was carved out for validation, and how."""
    stratum = next((target.stratum for target in held.schema.values()), "")
    evenly = f" of each {stratum}" if stratum else ""
    if held.groups is not None:
        count = f"{len(held):,} of {whole:,} training images in {len(set(held.groups)):,} groups"
        return f"Validation: {count} (about {100 * share:g} %{evenly}){why}."
    return (
        f"Validation: {len(held):,} of {whole:,} training images ({100 * share:g} %{evenly}){why}; they are chosen by "
        "a hash of their names, so adding files hardly changes the choice."
    )


def carve(whole: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """Two parts; the second has `share` of each stratum: the samples whose names have the lowest hashes.

    A stratum of two or more images has at least one in each part. An added sample moves at most one other. Groups stay
    whole, so that shares are not exact.
    """
    if not 0.0 < share < 1.0:
        raise DataError(
            f"the validation share val={share:g} is not allowed: must be between 0 and 1, such as {VAL_SHARE:g}"
        )
    if whole.groups is not None:
        _refuse_few(whole, 2, "one group, which cannot be in both training and validation; add images, or remove it")
        place = group_parts(whole.groups, _strata(whole), (1 - share, share), seed)
        return _part(whole, (place == 0).nonzero()[0].tolist()), _part(whole, (place == 1).nonzero()[0].tolist())
    chosen: set[int] = set()
    for members in _by_stratum(whole, seed):
        chosen.update(members[: min(max(round(share * len(members)), 1), len(members) - 1)])
    kept = [index for index in range(len(whole)) if index not in chosen]
    return _part(whole, kept), _part(whole, sorted(chosen))


def hold_out(whole: Dataset, fold: tuple[int, int], seed: int) -> tuple[Dataset, Dataset]:
    """All but the i-th of k parts, and that part; parts have equal shares of each stratum, and groups stay whole."""
    number, folds = fold
    if not 2 <= folds <= len(whole) or not 1 <= number <= folds:
        raise DataError(f"fold {number} of {folds} is not possible: {whole.name} has {len(whole):,} images")
    if whole.groups is not None:
        _refuse_few(whole, folds, f"fewer groups than the {folds} folds; choose fewer folds")
        place = group_parts(whole.groups, _strata(whole), [1 / folds] * folds, seed).tolist()
    else:
        _refuse_few(whole, folds, f"fewer images than the {folds} folds; choose fewer folds")
        place, dealt = [0] * len(whole), 0
        for members in _by_stratum(whole, seed):
            for index in members:
                place[index], dealt = dealt % folds, dealt + 1
    mine = [index for index, at in enumerate(place) if at == number - 1]
    rest = [index for index, at in enumerate(place) if at != number - 1]
    return _part(whole, rest, fold=fold), _part(whole, mine, fold=fold)


def _part(whole: Dataset, indices: list[int], *, fold: tuple[int, int] | None = None) -> RandomSubset:
    """Some samples; those of a part are of its whole, so that images are packed once."""
    if isinstance(whole, RandomSubset):
        return RandomSubset(whole.whole, [whole.indices[index] for index in indices], fold=fold or whole.fold)
    return RandomSubset(whole, indices, fold=fold)


def _by_stratum(whole: Dataset, seed: int) -> list[list[int]]:
    """The samples of each stratum in the order of a hash of their names."""
    strata: dict[int, list[tuple[bytes, int]]] = defaultdict(list)
    for index, stratum in enumerate(_strata(whole)):
        name = f"{seed}:{whole.key(index)}".encode("utf-8", "surrogateescape")
        strata[stratum].append((hashlib.sha256(name).digest(), index))
    return [[index for _, index in sorted(members)] for members in strata.values()]


def _refuse_few(whole: Dataset, needed: int, why: str) -> None:
    """DataError for a class that is not in enough groups; images are groups of their own where there are no others."""
    for name, target in whole.schema.items():
        if isinstance(target, ClassTarget):
            names = whole.groups or [str(index) for index in range(len(whole))]
            found = rare_in_groups(names, target.strata(whole.targets[name]), needed)
            if found is not None:
                raise DataError(f"class {target.classes[found[0]]!r} of {whole.name} is in {why}")


def _strata(dataset: Dataset) -> Sequence[int]:
    """The stratum of each sample by the first target; all 0 if there is none."""
    for name, target in dataset.schema.items():
        return target.strata(dataset.targets[name])
    return [0] * len(dataset)


def align(dataset: Dataset, schema: Schema) -> Dataset:
    """The dataset with the targets of another schema, matched by field name or else by kind."""
    if dict(dataset.schema) == dict(schema):
        return dataset
    if not schema:
        return Retargeted(dataset, {}, {})
    own = _matches(schema, dataset.schema)
    if len(own) < len(schema):
        raise DataError(f"{dataset.name} has {_described(dataset.schema)}; the training data has {_described(schema)}")
    targets = {
        name: dataset.schema[own[name]].align(dataset.targets[own[name]], target, name=dataset.name)
        for name, target in schema.items()
    }
    return Retargeted(dataset, targets, dict(schema))


def _matches(schema: Schema, other: Schema) -> dict[str, str]:
    """For each field of a schema the field of another: of the same name, else the same kind, else any that is left."""
    matched = {name: name for name in schema if name in other}
    for same_kind in (True, False):
        for name in schema:
            free = [one for one in other if one not in matched.values()]
            fitting = [one for one in free if not same_kind or other[one].kind == schema[name].kind]
            if name not in matched and fitting:
                matched[name] = fitting[0]
    return matched


def _described(schema: Schema) -> str:
    return ", ".join(target.describe() for target in schema.values()) or "no labels"


def _aligned(train: Dataset, val: Dataset, test: Dataset | None) -> tuple[Dataset, Dataset, Dataset | None]:
    """All splits with the schema of train, widened where another split needs it."""
    schema = dict(train.schema)
    for part in (val, test):
        if part is not None:
            own = _matches(schema, part.schema)
            wide = {
                name: target.joined(part.schema[own[name]]) if name in own else target
                for name, target in schema.items()
            }
            schema = {target.field if target != schema[name] else name: target for name, target in wide.items()}
    return align(train, schema), align(val, schema), None if test is None else align(test, schema)


def check(splits: Splits) -> Splits:
    """The same splits; DataError if a model cannot learn from them."""
    if (problem := splits.findings.refusal()) is not None:
        raise DataError(problem)
    parts = {"train": splits.train, "val": splits.val} | ({} if splits.test is None else {"test": splits.test})
    for name, part in parts.items():
        if len(part) == 0:
            raise DataError(f"{part.name} has no images in its {name} split; add some")
    for field, target in splits.train.schema.items():
        values = {name: (part.name, part.targets[field]) for name, part in parts.items()}
        if (reason := target.refusal(values)) is not None:
            raise DataError(reason)
    return splits
