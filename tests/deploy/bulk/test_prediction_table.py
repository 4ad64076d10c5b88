import csv
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import processes

from vitrail.deploy.bulk.image_files import ImageFile
from vitrail.deploy.bulk.prediction_table import bulk, table_columns
from vitrail.deploy.bulk.table_files import row_of
from vitrail.errors import BusyError, ConfigError, DataError
from vitrail.tasks.answer import Prediction
from vitrail.tasks.classify.class_answer import COLUMNS, Candidate, ClassAnswer
from vitrail.tasks.regress.regression import Number, NumbersAnswer

FILES = [ImageFile(f"{number}.png", Path(f"{number}.png")) for number in range(6)]
NAMES = [file.name for file in FILES]
MODEL = "runs/demo@0123456789ab"
ABOUT = {"columns": COLUMNS, "model": MODEL}
ANSWER = ClassAnswer(
    (Candidate("cat, big", 0, 0.75, True), Candidate("dog", 1, 0.25, False), Candidate("red", 2, 0.2, True))
)


class Model:
    """Predicts, and dies after some."""

    def __init__(self, dies: int | None = None) -> None:
        self.dies, self.asked = dies, []

    def __call__(self, files: Sequence[ImageFile]) -> Iterator[dict[str, Any]]:
        for count, file in enumerate(files):
            if count == self.dies:
                raise KeyboardInterrupt
            self.asked.append(file)
            if file.name == "3.png":
                yield row_of(Prediction(file.name, error='3.png is broken, "quite", really'), COLUMNS)
            else:
                yield row_of(Prediction(file.name, ANSWER), COLUMNS)


def paths(out: Path) -> list[str]:
    if out.suffix == ".parquet":
        import pyarrow.parquet

        return pyarrow.parquet.read_table(out)["path"].to_pylist()
    if out.suffix == ".csv":
        return [row["path"] for row in csv.DictReader(out.read_text().splitlines())]
    return [json.loads(line)["path"] for line in out.read_text().splitlines()]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_after_a_kill_every_file_has_one_row(suffix, tmp_path):
    out = tmp_path / f"found{suffix}"
    with pytest.raises(KeyboardInterrupt):
        bulk(FILES, out, Model(dies=2), **ABOUT)
    assert not out.exists()
    journal = tmp_path / f"found{suffix}.partial"
    with journal.open("a") as file:
        file.write('{"path": "2.p')  # a line that was cut
    model = Model()
    assert bulk(FILES, out, model, **ABOUT) == (6, 4, 1)
    assert model.asked == FILES[2:]
    assert paths(out) == NAMES
    assert not journal.exists()


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_finished_table_grows_by_what_is_new(suffix, tmp_path):
    out, model = tmp_path / f"found{suffix}", Model()
    bulk(FILES[:4], out, model, **ABOUT)
    assert bulk([*FILES, FILES[0]], out, model, **ABOUT) == (6, 2, 1)
    assert model.asked == FILES
    assert paths(out) == NAMES


def test_values_survive_csv(tmp_path):
    bulk(FILES, tmp_path / "a.csv", Model(), **ABOUT)
    bulk(FILES, tmp_path / "a.csv", Model(), **ABOUT)  # reads them back
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert tuple(rows[0]) == table_columns(COLUMNS)
    assert (rows[0]["label"], float(rows[0]["probability"])) == ("cat, big", 0.75)
    assert json.loads(rows[0]["answers"]) == [["cat, big", 0.75], ["dog", 0.25], ["red", 0.2]]
    assert (rows[0]["chosen"], rows[3]["chosen"]) == ("cat, big|red", "")
    assert {row["model"] for row in rows} == {MODEL}
    assert (rows[3]["label"], rows[3]["error"]) == ("", '3.png is broken, "quite", really')


def test_json_lines_hold_lists_as_lists(tmp_path):
    out = tmp_path / "a.jsonl"
    for _ in range(2):  # and read them back
        bulk(FILES, out, Model(), **ABOUT)
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        assert rows[0]["answers"] == [["cat, big", 0.75], ["dog", 0.25], ["red", 0.2]]
        assert (rows[3]["answers"], rows[3]["label"]) == (None, None)


def test_parquet_has_numbers_as_numbers(tmp_path):
    pyarrow = pytest.importorskip("pyarrow.parquet")
    for _ in range(2):
        bulk(FILES, tmp_path / "a.parquet", Model(), **ABOUT)
        row, *_ = pyarrow.read_table(tmp_path / "a.parquet").to_pylist()
        assert (row["label"], row["probability"]) == ("cat, big", 0.75)
        assert json.loads(row["answers"])[1] == ["dog", 0.25]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_regression_has_a_column_for_each_number(suffix, tmp_path):
    out, columns = tmp_path / f"a{suffix}", ("age", "age_low", "age_high")
    answer = NumbersAnswer((Number("age", 40.5, 31.0, 50.0),), ((18.0, 90.0),))
    for files in (FILES[:3], FILES[:4]):

        def predict(left: Sequence[ImageFile]) -> Iterator[dict[str, Any]]:
            return (row_of(Prediction(file.name, answer), columns) for file in left)

        bulk(files, out, predict, columns=columns, model=MODEL)
    if suffix == ".csv":
        first, *others = csv.DictReader(out.read_text().splitlines())
        assert [float(first[name]) for name in columns] == [40.5, 31.0, 50.0]
    elif suffix == ".jsonl":
        first, *others = map(json.loads, out.read_text().splitlines())
        assert [first[name] for name in columns] == [40.5, 31.0, 50.0]
    else:
        import pyarrow.parquet

        first, *others = pyarrow.parquet.read_table(out).to_pylist()
        assert [first[name] for name in columns] == [40.5, 31.0, 50.0]
    assert list(first) == ["path", *columns, "error", "model"]
    assert len(others) == 3


def test_a_table_of_another_task_is_not_continued(tmp_path):
    bulk(FILES, tmp_path / "a.csv", Model(), **ABOUT)
    with pytest.raises(DataError, match="columns"):
        bulk(FILES, tmp_path / "a.csv", Model(), columns=("age",), model=MODEL)


def test_columns_must_not_collide():
    with pytest.raises(ConfigError, match="error"):
        table_columns(("error",))


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_names_of_any_letters_are_recognised_again(suffix, tmp_path):
    out = tmp_path / f"found{suffix}"
    names = ["a\u2028b.png", "ñandú, 鳥.png", "x\x85y.png", os.fsdecode(b"caf\xe9.png")]
    files = [ImageFile(name, Path(name)) for name in names]
    assert bulk(files, out, Model(), **ABOUT) == (4, 4, 0)
    assert bulk(files, out, Model(), **ABOUT) == (4, 0, 0)
    assert "ñandú, 鳥.png".encode() in out.read_bytes()


def test_parquet_refuses_a_name_that_is_not_utf8_before_any_work(tmp_path):
    files = [*FILES, ImageFile(os.fsdecode(b"caf\xe9.png"), Path("x"))]
    with pytest.raises(DataError, match="UTF-8"):
        bulk(files, tmp_path / "a.parquet", Model(dies=0), **ABOUT)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_table_is_of_one_model(suffix, tmp_path):
    out = tmp_path / f"found{suffix}"
    bulk(FILES[:2], out, Model(), **ABOUT)
    moved, other = MODEL.replace("runs", "old-runs"), MODEL.replace("b", "c")
    assert bulk(FILES[:3], out, Model(), columns=COLUMNS, model=moved) == (3, 1, 0)
    before = out.read_bytes()
    with pytest.raises(DataError, match=MODEL):
        bulk(FILES, out, Model(), columns=COLUMNS, model=other)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {out.name: before}


def test_a_journal_is_of_one_model(tmp_path):
    out, journal = tmp_path / "found.csv", tmp_path / "found.csv.partial"
    with pytest.raises(KeyboardInterrupt):
        bulk(FILES, out, Model(dies=2), **ABOUT)
    with pytest.raises(DataError, match=MODEL):
        bulk(FILES, out, Model(), columns=COLUMNS, model="runs/demo@other")
    journal.write_text('{"path": "0.png"}\n')
    with pytest.raises(DataError, match="columns"):
        bulk(FILES, out, Model(), **ABOUT)
    journal.write_text("3\n")
    with pytest.raises(DataError, match="columns"):
        bulk(FILES, out, Model(), **ABOUT)


def test_bad_tables_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"\.csv"):
        bulk(FILES, tmp_path / "a.cvs", Model(), **ABOUT)
    (tmp_path / "b.csv").write_text("name,age\nx,3\n")
    with pytest.raises(DataError, match="columns"):
        bulk(FILES, tmp_path / "b.csv", Model(), **ABOUT)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("header.csv", b"name,age\n"),  # no rows: nothing in them is wrong
        ("notes.csv", b"remember the milk"),
        ("rows.jsonl", b'{"a": 1}\n'),
        ("list.jsonl", b"[1, 2]\n"),
        ("text.parquet", b"PAR1"),
        ("found.csv.partial", b"my own notes\n"),
        ("found.csv.partial", b"path,label\n"),
    ],
)
def test_files_of_others_are_refused_and_unchanged(name, content, tmp_path):
    foreign = tmp_path / name
    foreign.write_bytes(content)
    with pytest.raises(DataError, match="table"):
        bulk(FILES, tmp_path / name.removesuffix(".partial"), Model(dies=0), **ABOUT)
    assert [(item.name, item.read_bytes()) for item in tmp_path.iterdir()] == [(name, content)]


def test_a_parquet_of_others_without_rows_is_refused(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    pyarrow.parquet.write_table(arrow.table({"age": arrow.array([], arrow.int64())}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="columns"):
        bulk(FILES, tmp_path / "a.parquet", Model(dies=0), **ABOUT)


@pytest.mark.parametrize("name", ["found.csv", "found.csv.partial"])
def test_a_pipe_is_refused_and_an_empty_file_is_taken(name, tmp_path):
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match="pipe"):
        bulk(FILES, tmp_path / "found.csv", Model(dies=0), **ABOUT)
    (tmp_path / name).unlink()
    (tmp_path / name).touch()
    assert bulk(FILES, tmp_path / "found.csv", Model(), **ABOUT).rows == 6


FORMULAS = [
    "=cmd|' /C calc'!A0.png",
    "+1+1.png",
    "-2+3.png",
    "@SUM(A1).png",
    "\t=1.png",
    "\r=1.png",
    "'=1.png",
    "''+.png",
]
HARMLESS = ["a=b.png", "'quoted'.png", "-5", "+1.5e-3", "ordinary.png"]


def test_formulas_are_neutralised_and_read_back(tmp_path):
    out, columns = tmp_path / "found.csv", ("=label", "number")
    names = [*FORMULAS, *HARMLESS]
    files = [ImageFile(name, Path(name)) for name in names]

    def predict(left: Sequence[ImageFile]) -> Iterator[dict[str, Any]]:
        return ({"path": file.name, "=label": f"={file.name}", "number": -0.5, "error": None} for file in left)

    for count in (3, len(files), len(files)):  # grows, and is read back
        assert bulk(files[:count], out, predict, columns=columns, model=MODEL).rows == count
    with out.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["path", "'=label", "number", "error", "model"]
    assert [row[0] for row in rows] == [*(f"'{name}" for name in FORMULAS), *HARMLESS]
    assert {row[1][:2] for row in rows} == {"'="}
    assert {row[2] for row in rows} == {"-0.5"}


DYING = """
import os, signal, sys
sys.path[:0] = {here!r}
from pathlib import Path
from test_prediction_table import ABOUT, FILES, Model
from vitrail.deploy.bulk.prediction_table import bulk

def predict(left):
    for count, found in enumerate(Model()(left)):
        yield found
        if count == 3:
            signal.raise_signal(signal.SIGKILL)

bulk(FILES, Path({out!r}), predict, **ABOUT)
"""


def test_a_table_has_one_writer(tmp_path):
    out, refused = tmp_path / "found.csv", []

    def predict(left: Sequence[ImageFile]) -> Iterator[dict[str, Any]]:
        for row in Model()(left):
            with pytest.raises(BusyError, match=f"found.csv.*{os.getpid()}") as caught:
                bulk(FILES, out, Model(), **ABOUT)
            refused.append(caught.value)
            yield row

    assert bulk(FILES, out, predict, **ABOUT) == (6, 6, 1)
    assert len(refused) == 6
    assert paths(out) == NAMES
    assert [item.name for item in tmp_path.iterdir()] == ["found.csv"]


def test_a_name_that_comes_twice_has_one_row(tmp_path):
    twice = [*FILES, ImageFile("0.png", Path("other/0.png"))]
    assert bulk(twice, tmp_path / "found.csv", Model(), **ABOUT).rows == 6


def test_a_process_that_is_killed_leaves_rows_that_are_not_done_again(tmp_path):
    out = tmp_path / "found.csv"
    script = DYING.format(here=[str(Path(__file__).parents[up]) for up in (0, 2)], out=str(out))
    died = processes.run([sys.executable, "-c", script])
    assert died.returncode == -signal.SIGKILL, died.stderr
    model = Model()
    assert bulk(FILES, out, model, **ABOUT) == (6, 2, 1)
    assert model.asked == FILES[4:]
    assert paths(out) == NAMES
