"""The contract of every registered kind of target; a new kind needs an entry in EXAMPLES of
`support/target_examples.py`, and no other test.

Each check takes a kind and its example. The last tests break one method of a kind at a time, and the check must notice.
"""

import json
import pickle
from dataclasses import FrozenInstanceError, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from PIL import Image
from support.target_examples import EXAMPLES, Example
from torch import Tensor

from vitrail.data.augment.augmentation import Augment, AugmentConfig
from vitrail.data.dataset import Batch, target_digest
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.opening import open_data
from vitrail.data.targets import Column, NumbersTarget, Target
from vitrail.data.targets.target import Change, Read, schema_from_dict, schema_to_dict
from vitrail.errors import ConfigError, DataError
from vitrail.report import Report

FOREIGN = ("author", ["Ann", "Ben", "Eve"])  # a column that no kind may take


def columns_of(columns: dict[str, list[Any]]) -> list[Column]:
    count = len(next(iter(columns.values())))
    return [Column(Path("t.csv"), name, cells, range(2, count + 2)) for name, cells in columns.items()]


def foreign(count: int) -> Column:
    name, cells = FOREIGN
    return Column(Path("t.csv"), name, (cells * count)[:count], range(2, count + 2))


def read(kind: type[Target], example: Example) -> Read:
    return kind.read(columns_of(example.columns))


def loaded(target: Target, values: Tensor) -> Tensor:
    """Values as batches hold them."""
    return torch.stack([target.load(value) for value in values])


def shape_at(target: Target, values: Tensor, size: tuple[int, int]) -> tuple[int, ...]:
    """The shape of values of images of a size."""
    return (len(values), *size) if target.dense else tuple(values.shape)


def check_declaration(kind: type[Target], example: Example) -> None:
    assert not kind.__abstractmethods__
    assert kind.field.isidentifier()
    assert all(name == name.lower() for name in kind.column_names)
    others = [other for other in Target.kinds.values() if other is not kind and not issubclass(kind, other)]
    assert not {name for other in others for name in other.column_names} & set(kind.column_names)
    target = read(kind, example).target
    assert hash(target) == hash(replace(target))
    with pytest.raises(FrozenInstanceError):
        target.kind = "other"


def check_reading(kind: type[Target], example: Example) -> None:
    columns = columns_of(example.columns)
    count = len(columns[0].cells)
    assert [column.name for column in kind.recognise([*columns, foreign(count)])] == list(example.columns)
    assert kind.recognise([foreign(count)]) == []
    for name in kind.column_names:
        named = replace(columns[0], name=name.upper())
        assert kind.recognise([foreign(count), named]) == [named]
    target, values, notes = kind.read(columns)
    assert type(target) is kind
    assert isinstance(values, Tensor)
    assert len(values) == count
    assert notes
    assert all(isinstance(note, str) for note in (*notes, *target.notes(), target.describe()))


def check_bad_cells(kind: type[Target], example: Example) -> None:
    name = next(iter(example.columns))
    for cell in example.bad_cells:
        cells = list(example.columns[name])
        cells[5] = cell
        with pytest.raises(DataError, match=rf"line 7\b.*{name}"):
            kind.read(columns_of(example.columns | {name: cells}))


def check_round_trip(kind: type[Target], example: Example) -> None:
    schema = {kind.field: read(kind, example).target}
    assert schema_from_dict(json.loads(json.dumps(schema_to_dict(schema)))) == schema


def check_strata(kind: type[Target], example: Example) -> None:
    target, values, _ = read(kind, example)
    strata = target.strata(values)
    assert all(type(stratum) is int for stratum in strata)
    assert len(strata) == len(values)
    assert target.strata(values.clone()) == strata
    assert len(target.strata(values[:1])) == 1


def check_align(kind: type[Target], example: Example) -> None:
    target, values, _ = read(kind, example)
    assert torch.equal(target.align(values, target, name="data"), values)
    assert target.joined(target) == target
    if example.reorder is None:
        return
    other = example.reorder(target)
    moved = other.align(target.align(values, other, name="data"), target, name="data")
    assert torch.equal(moved, values)
    assert moved.dtype == values.dtype
    assert not torch.equal(target.align(values, other, name="data"), values)
    with pytest.raises(DataError, match="data"):
        target.align(values, example.rename(target), name="data")


def check_refusal(kind: type[Target], example: Example) -> None:
    target, values, _ = read(kind, example)
    good = {"train": ("data", values), "val": ("data", values)}
    assert target.refusal(good) is None
    if example.unlearnable is None:
        return
    reason = target.refusal(good | {"train": ("data", example.unlearnable(values))})
    assert isinstance(reason, str)
    assert "data" in reason


def check_lost(kind: type[Target], example: Example) -> None:
    target, values, _ = read(kind, example)
    assert target.lost(values, values) == ()
    assert all(isinstance(name, str) for name in target.lost(values, values[:0]))


def check_load(kind: type[Target], example: Example) -> None:
    target, values, _ = read(kind, example)
    if not target.dense:
        value = values[0]
        assert target.load(value) is value
        return
    assert values.dtype == torch.uint8
    assert values.ndim == 2
    pixels = loaded(target, values)
    assert pixels.ndim == 3
    assert torch.equal(pixels, loaded(target, pickle.loads(pickle.dumps(values))))
    with pytest.raises(DataError, match="cannot"):
        target.load(references_elsewhere(values[0]))


def references_elsewhere(value: Tensor) -> Tensor:
    """A reference to a file that does not exist."""
    text = bytes(value.tolist()).replace(b"vitrail-test-", b"vitrail-lost-")
    return torch.tensor(list(text), dtype=torch.uint8)


def check_paste(kind: type[Target], example: Example) -> None:
    target, values, _ = read(kind, example)
    values = loaded(target, values)
    other, size = values[torch.arange(len(values)) ^ 1], tuple(values.shape[1:]) if target.dense else (32, 32)
    region = torch.zeros(len(values), *size, dtype=torch.bool)
    region[:, :, size[1] // 2 :] = True
    try:
        pasted = target.paste(values, other, region)
    except ConfigError as error:
        assert kind.kind in str(error)
        return
    assert (len(pasted), pasted.dtype) == (len(values), values.dtype)
    assert target.text(target.paste(values, other, ~region | region)[1]) == target.text(values[0])
    assert target.text(target.paste(values, other, ~region & region)[1]) == target.text(values[1])
    chosen = target.objects(values, torch.rand(len(values), 64), size)
    assert chosen is None or (chosen.shape, chosen.dtype) == (region.shape, torch.bool)


def check_mix(kind: type[Target], example: Example) -> None:
    target, values, _ = read(kind, example)
    partner = torch.arange(len(values)) ^ 1
    whole = torch.ones(len(values), 1)
    try:
        own = target.mix(values, partner, whole)
    except ConfigError as error:
        assert kind.kind in str(error)
        return
    if own.shape == values.shape:
        assert torch.equal(own, values.to(own.dtype))
    assert torch.equal(target.mix(own, partner, whole), own)
    assert torch.equal(target.mix(values, partner, 0 * whole), own[partner])
    assert own.is_floating_point()
    for share in (0.25, 0.5, 0.9):
        mixed = target.mix(values, partner, share * whole)
        assert mixed.shape == own.shape
        low, high = torch.minimum(own, own[partner]), torch.maximum(own, own[partner])
        assert ((mixed >= low - 1e-5) & (mixed <= high + 1e-5)).all()


MAPS = {
    "identity": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]],
    "flip": [[-1.0, 0.0, 32.0], [0.0, 1.0, 0.0]],
    "crop": [[0.5, 0.0, 4.0], [0.0, 0.5, 9.0]],
    "rotation": [[0.8, -0.6, 12.0], [0.6, 0.8, -6.0]],
}


def check_move(kind: type[Target], example: Example) -> None:
    target, values, _ = read(kind, example)
    values = loaded(target, values)
    before, size = values.clone(), tuple(values.shape[1:]) if target.dense else (32, 32)
    for name, rows in MAPS.items():
        moved = target.move(values, torch.tensor([rows]).expand(len(values), 2, 3), size)
        assert (moved.shape, moved.dtype) == (values.shape, values.dtype)
        if name == "identity":
            torch.testing.assert_close(moved, values)
    assert torch.equal(values, before)
    assert all(isinstance(target.keeps(change), bool) for change in get_args(Change))


def check_text_and_drawing(kind: type[Target], example: Example) -> None:
    target, values, _ = read(kind, example)
    values = loaded(target, values)
    image = torch.full((3, 20, 30), 77, dtype=torch.uint8)
    for value in values[:4]:
        text = target.text(value)
        assert isinstance(text, str)
        assert text.strip()
        drawn = target.draw(image, value)
        assert (drawn.shape, drawn.dtype) == (image.shape, torch.uint8)
    assert (image == 77).all()
    assert len({target.text(value) for value in values}) > 1


def check_audit(kind: type[Target], example: Example) -> None:
    target, values, _ = read(kind, example)
    for val in (values, values[:1], values[:0]):
        audit = target.audit({"train": values, "val": val})
        assert all(isinstance(advice, str) for advice in audit.advice)
        report = Report("Audit", tuple(audit.sections))
        assert Report.from_json(report.to_json()).title == "Audit"
        assert all(section.title in str(report) for section in audit.sections)
        assert all(section.title in report.to_html() for section in audit.sections)
    groups = target.groups(values)
    assert len(groups) == len(values)
    assert all(group is None or isinstance(group, str) for group in groups)


def check_batches(kind: type[Target], example: Example) -> None:
    target, values, _ = read(kind, example)
    values = loaded(target, values)
    images = torch.zeros(len(values), 3, 16, 16, dtype=torch.uint8)
    augment = Augment(AugmentConfig(), Preprocess(image_size=(8, 8)), seed=0, schema={kind.field: target})
    for size in (len(values), 3, 1, 0):  # the last batch is smaller, and a process may have no part in it
        batch = Batch(images[:size], {kind.field: values[:size]}, torch.arange(size))
        found = augment(batch, epoch=0).targets[kind.field]
        assert (found.shape, found.dtype) == (shape_at(target, values[:size], (8, 8)), values.dtype)


def check_known(kind: type[Target], example: Example) -> None:
    target, values, _ = read(kind, example)
    pixels = loaded(target, values)
    for some in (values, pixels):
        assert target.known(some).dtype == torch.bool
        assert target.known(some).tolist() == [True] * len(some)
    if kind.unknown is Target.unknown:
        with pytest.raises(DataError, match="every"):
            target.unknown(values)
        return
    none = target.unknown(values)
    assert (none.shape, none.dtype) == (values[0].shape, values.dtype)
    assert target.known(torch.cat([values, none[None]])).tolist() == [True] * len(values) + [False]
    assert target.text(none) == "not annotated"
    assert target.align(none[None], target, name="x").shape == none[None].shape
    augment = Augment(AugmentConfig(), Preprocess(image_size=(8, 8)), seed=0, schema={kind.field: target})
    batch = Batch(
        torch.zeros(1, 3, 16, 16, dtype=torch.uint8), {kind.field: loaded(target, none[None])}, torch.arange(1)
    )
    assert target.known(augment(batch, epoch=0).targets[kind.field]).tolist() == [False]
    target.audit({"train": torch.cat([values, none[None]]), "val": none[None]})
    assert target.groups(none[None]) == [None]


def check_digest(kind: type[Target], example: Example) -> None:
    target, values, _ = read(kind, example)
    other = values.clone()
    other[0] = values[1]
    first = target_digest({kind.field: target}, {kind.field: values})
    assert target_digest({kind.field: target}, {kind.field: values.clone()}) == first
    assert target_digest({kind.field: target}, {kind.field: other}) != first
    if example.reorder is not None:
        assert target_digest({kind.field: example.reorder(target)}, {kind.field: values}) != first


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}


def test_every_kind_has_an_example():
    assert set(EXAMPLES) == set(Target.kinds)


@pytest.mark.parametrize("kind", EXAMPLES)
@pytest.mark.parametrize("check", CHECKS)
def test_contract(kind, check):
    CHECKS[check](Target.kinds[kind], EXAMPLES[kind])


@pytest.mark.parametrize("kind", EXAMPLES)
@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_table_is_opened_split_and_aligned(tmp_path, kind, suffix):
    columns = {"path": [f"{number}.png" for number in range(24)]} | EXAMPLES[kind].columns
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    lines = [json.dumps(row) for row in rows]
    if suffix == ".csv":
        lines = [",".join(columns), *(",".join(map(str, row.values())) for row in rows)]
    (tmp_path / f"t{suffix}").write_text("\n".join(lines))
    for name in columns["path"]:
        Image.new("L", (4, 4)).save(tmp_path / name)
    splits = open_data(tmp_path / f"t{suffix}", val=0.25)
    (target,) = splits.train.schema.values()
    assert type(target) is Target.kinds[kind]
    assert len(splits.train) + len(splits.val) == 24
    assert 4 <= len(splits.val) <= 8
    assert splits.val.targets[target.field].shape[1:] == splits.train.targets[target.field].shape[1:]


# --- the suite notices kinds that are half done -----------------------------------------------------------------------

BROKEN = {
    "check_declaration": {"field": "two words"},
    "check_reading": {"recognise": classmethod(lambda cls, columns: list(columns))},
    "check_bad_cells": {"read": classmethod(lambda cls, columns: Read(cls(names=("age",)), torch.zeros(24, 1), ("",)))},
    "check_strata": {"strata": lambda self, values: [0.5] * len(values)},
    "check_align": {"align": lambda self, values, to, *, name: values},
    "check_refusal": {"refusal": lambda self, parts: None},
    "check_lost": {"lost": lambda self, before, after: ("age",)},
    "check_load": {"load": lambda self, value: value.clone()},
    "check_paste": {"paste": lambda self, values, other, region, hidden=None: values},
    "check_mix": {"mix": lambda self, values, partner, share: values + values[partner] * (1 - share)},
    "check_move": {"move": lambda self, values, maps, size: values[:, :1]},
    "check_text_and_drawing": {"text": lambda self, value: ""},
    "check_audit": {"groups": lambda self, values: []},
    "check_batches": {"move": lambda self, values, maps, size: values.double()},
}


@pytest.fixture
def register():
    """Makes a kind of numbers with some methods replaced; unregistered again after the test."""
    known = set(Target.kinds)

    def make(changes: dict[str, Any]) -> type[Target]:
        return dataclass(frozen=True, kw_only=True)(type("Broken", (NumbersTarget,), changes, kind="broken"))

    yield make
    for kind in set(Target.kinds) - known:
        del Target.kinds[kind]
    assert set(Target.kinds) == known


@pytest.mark.parametrize("check", BROKEN)
def test_a_broken_method_is_noticed(register, check):
    kind = register({"column_names": (), **BROKEN[check]})
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        CHECKS[check](kind, EXAMPLES["numbers"])


def test_a_kind_without_all_abstract_methods_is_noticed(register):
    @dataclass(frozen=True, kw_only=True)
    class Half(Target, kind="half"):
        field = "half"

        @classmethod
        def recognise(cls, columns):
            return list(columns)

    with pytest.raises(TypeError, match="abstract"):
        Half()
    with pytest.raises(AssertionError):
        check_declaration(Half, EXAMPLES["numbers"])
    with pytest.raises(AssertionError):
        test_every_kind_has_an_example()


def test_a_digest_that_misses_a_value_is_noticed(register, monkeypatch):
    monkeypatch.setitem(check_digest.__globals__, "target_digest", lambda schema, targets: repr(schema))
    with pytest.raises(AssertionError):
        check_digest(NumbersTarget, EXAMPLES["numbers"])


def test_a_field_that_is_not_stored_is_noticed(register):
    kind = register({"column_names": (), "__eq__": lambda self, other: False, "__hash__": lambda self: 0})
    with pytest.raises(AssertionError):
        check_round_trip(kind, EXAMPLES["numbers"])
