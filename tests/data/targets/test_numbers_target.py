"""Numbers per image: which columns count as numbers, strata for splits, outliers, and what augmentation may change."""

from pathlib import Path

import pytest
import torch

from vitrail.data.targets import Column, NumbersTarget
from vitrail.errors import DataError

AGES = NumbersTarget(names=("age", "height"))


def column(name, *cells) -> Column:
    return Column(Path("t.csv"), name, cells, range(2, 2 + len(cells)))


@pytest.mark.parametrize(
    ("cells", "numeric"),
    [
        (("1", "2.5", "-3e4"), True),
        ((1, 2.5, 0), True),
        (("3", "4", "x"), True),  # read() reports the wrong cell
        (("3", "", "nan"), False),
        (("1,5", "2,5", "3"), True),  # read() suggests the decimal point
        (("0", "1", "1"), False),  # marks of a class
        (("a", "b", "3"), False),
        ((True, False, True), False),
        ((None, None, None), False),
    ],
)
def test_columns_of_numbers_are_recognised(cells, numeric):
    assert bool(NumbersTarget.recognise([column("age", *cells)])) is numeric


def test_row_numbers_are_not_targets():
    for name in ("", "id", "ID", "index", "Unnamed: 0"):
        assert NumbersTarget.recognise([column(name, 0, 1, 2, 3)]) == []
    assert [found.name for found in NumbersTarget.recognise([column("age", 3), column("Value", 4)])] == ["Value"]


def test_numbers_that_float32_cannot_hold_are_refused():
    for cell in ("1e39", 10**400, float("inf"), float("nan")):
        with pytest.raises(DataError, match="finite"):
            NumbersTarget.read([column("age", cell)])
    assert NumbersTarget.read([column("age", 2023, "-1e38")]).values.tolist() == [[2023.0], [pytest.approx(-1e38)]]


@pytest.mark.parametrize(("count", "groups"), [(1, 1), (9, 1), (25, 2), (100, 10), (5000, 10)])
def test_strata_are_groups_of_equal_size(count, groups):
    values = torch.randperm(count).float()[:, None]
    strata = torch.tensor(NumbersTarget(names=("age",)).strata(values))
    sizes = strata.bincount()
    assert len(sizes) == groups
    assert sizes.max() - sizes.min() <= 1
    assert (strata[values[:, 0].argsort()].diff() >= 0).all()  # from low to high


def test_alignment_takes_columns_by_name():
    values = torch.tensor([[30.0, 1.7]])
    assert AGES.align(values, NumbersTarget(names=("height",)), name="x").tolist() == [[pytest.approx(1.7)]]
    with pytest.raises(DataError, match=r"age, height.*weight"):
        AGES.align(values, NumbersTarget(names=("weight",)), name="x")


def test_only_what_was_declared_safe_is_kept():
    assert [AGES.keeps(change) for change in ("flip", "crop")] == [False, False]
    assert NumbersTarget(names=("age",), safe=("flip",)).keeps("flip")


def test_text_and_description():
    assert AGES.text(torch.tensor([2023.0, 1.75])) == "age 2023, height 1.75"
    assert AGES.text(torch.tensor([123456.0, 1e-9])) == "age 123456, height 1e-09"
    assert NumbersTarget(names=("age",)).describe() == "1 number (age)"


def test_constant_numbers_cannot_be_learned():
    values = torch.tensor([[3.0, 1.0], [3.0, 2.0]])
    assert "'age'" in AGES.refusal({"train": ("people", values)})
    assert AGES.refusal({"train": ("people", values + torch.tensor([[1.0, 0.0], [0.0, 0.0]]))}) is None


def test_audit_finds_outliers_and_values_outside_of_train():
    train = torch.arange(40.0)[:, None]
    target = NumbersTarget(names=("age",))
    assert target.audit({"train": train, "val": train[3:9]}).advice == []
    advice = target.audit({"train": torch.cat([train, torch.tensor([[9000.0]])]), "val": train - 5}).advice
    assert [text.startswith(start) for text, start in zip(advice, ("Outliers", "Values"), strict=True)] == [True, True]
    assert "5" in advice[1]
    assert target.audit({"train": train[:0], "val": train}).advice == []
