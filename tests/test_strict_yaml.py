"""Strict YAML: a few lines cannot stand for billions of values, and whatever is wrong is a ValueError."""

import time
from itertools import pairwise

import pytest

from vitrail.strict_yaml import from_yaml

_LETTERS = "abcdefghi"
_PAIRS = list(pairwise(_LETTERS))
ANCHORS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in _PAIRS
)
MERGED = "a: &a {x: 1}\n" + "".join(f"{new}: &{new} {{<<: [{','.join([f'*{old}'] * 9)}]}}\n" for old, new in _PAIRS)


def test_plain_values_are_read() -> None:
    assert from_yaml("a: 1\nb: [x, 2.5, null]\nc: &c {d: yes}\ne: *c\n", most=100) == {
        "a": 1, "b": ["x", 2.5, None], "c": {"d": True}, "e": {"d": True},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (f"{ANCHORS}license: *i\n", "anchors"),
        ("a: &a [*a]\n", "anchors"),
        (MERGED, "merged"),
        ("a: 1" + ":1" * 200_000, "long"),
        ("a: " + "9" * 10_000, "long"),
        ("[" * 100_000, "deep"),
        ("day: 2026-13-45\n", "month"),
        ("!!python/object/apply:os.system [true]", "tag"),
        ("a: [", "expected"),
        ("a: 0b_\n", "."),
        ("a: \x00", "special"),
        ("!!binary '====a'", "."),
        ("? {a: 1}\n: b", "hash"),
    ],
)
def test_anything_else_is_a_sentence(text: str, word: str) -> None:
    start = time.process_time()
    with pytest.raises(ValueError, match=word) as caught:
        str(from_yaml(text, most=10_000))
    assert "\n" not in str(caught.value)
    assert time.process_time() - start < 10
