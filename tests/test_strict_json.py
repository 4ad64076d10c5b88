import json
import math
import os
import re
from pathlib import Path

import pytest

from vitrail.strict_json import from_json, read_json, to_json

SOURCE = Path(__file__).parents[1] / "src" / "vitrail"


def test_undefined_numbers_become_null() -> None:
    text = to_json({"a": math.nan, "b": [1.5, -math.inf, (math.inf,)], "c": 3})
    assert json.loads(text) == {"a": None, "b": [1.5, None, [None]], "c": 3}


def test_the_same_text_as_json_where_all_numbers_are_defined() -> None:
    value = {"é": [1, 2.5, None, True, {"b": "c"}]}
    assert to_json(value) == json.dumps(value, ensure_ascii=False)
    assert to_json(value, indent=2, ascii_only=True) == json.dumps(value, indent=2)
    assert from_json(to_json(value, compact=True).encode()) == value


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('{"a": NaN}', "NaN"),
        ("[-Infinity]", "Infinity"),
        ("[1e999]", "1e999"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "twice"),
        ("1" * 5000, "digits"),
        ("[" * 200_000, "deep"),
        ('{"a": ' * 100_000, "deep"),
        (b"\xff\xfe\x00", "UTF"),
        ("", "Expecting"),
    ],
)
def test_what_is_not_strictly_json_is_a_value_error(text: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        from_json(text)


def test_other_bytes_than_utf_8_are_an_error_without_the_text() -> None:
    with pytest.raises(ValueError, match="UTF-8") as error:
        from_json(b'{"a": "' + 10_000 * b"x" + b'\xff"}')
    assert len(repr(error.value)) < 100


def test_a_file_has_a_limit_and_is_a_regular_file(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text("[" + "1," * 100 + "1]")
    assert len(read_json(file)) == 101
    with pytest.raises(ValueError, match="larger"):
        read_json(file, limit=20)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ValueError, match="regular"):
        read_json(tmp_path / "fifo")


def test_all_json_is_written_by_one_function_or_is_checked_for_nan() -> None:
    writes = re.compile(r"\bjson\.dumps?\((?!.*allow_nan=False)")
    files = [file for file in SOURCE.rglob("*.py") if file.name != "strict_json.py"]
    assert [str(file.relative_to(SOURCE)) for file in files if writes.search(file.read_text())] == []
