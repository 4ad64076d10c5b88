import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from vitrail.deploy.bulk import COLUMNS, bulk
from vitrail.deploy.pictures import Picture
from vitrail.errors import ConfigError, DataError
from vitrail.tasks.predict import Answer, Prediction

FILES = [Picture(f"{number}.png", Path(f"{number}.png")) for number in range(6)]
NAMES = [file.name for file in FILES]
MODEL = "runs/demo@0123456789ab"


class Model:
    """Answers, and dies after some."""

    def __init__(self, dies: int | None = None) -> None:
        self.dies, self.asked = dies, []

    def __call__(self, files: Sequence[Picture]) -> Iterator[Prediction]:
        for place, file in enumerate(files):
            if place == self.dies:
                raise KeyboardInterrupt
            self.asked.append(file)
            if file.name == "3.png":
                yield Prediction(file.name, error='3.png is broken, "quite", really')
            else:
                answers = (Answer("cat, big", 0.75, True), Answer("dog", 0.25, False), Answer("red", 0.2, True))
                yield Prediction(file.name, answers)


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
        bulk(FILES, out, Model(dies=2), model=MODEL)
    assert not out.exists()
    journal = tmp_path / f"found{suffix}.partial"
    with journal.open("a") as file:
        file.write('{"path": "2.p')  # a line that was cut
    model = Model()
    assert bulk(FILES, out, model, model=MODEL) == (6, 4, 1)
    assert model.asked == FILES[2:]
    assert paths(out) == NAMES
    assert not journal.exists()


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_finished_table_grows_by_what_is_new(suffix, tmp_path):
    out, model = tmp_path / f"found{suffix}", Model()
    bulk(FILES[:4], out, model, model=MODEL)
    assert bulk([*FILES, FILES[0]], out, model, model=MODEL) == (6, 2, 1)
    assert model.asked == FILES
    assert paths(out) == NAMES


def test_values_survive_csv(tmp_path):
    bulk(FILES, tmp_path / "a.csv", Model(), model=MODEL)
    bulk(FILES, tmp_path / "a.csv", Model(), model=MODEL)  # reads them back
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert tuple(rows[0]) == COLUMNS
    assert (rows[0]["label"], float(rows[0]["probability"])) == ("cat, big", 0.75)
    assert json.loads(rows[0]["answers"]) == [["cat, big", 0.75], ["dog", 0.25], ["red", 0.2]]
    assert (rows[0]["chosen"], rows[3]["chosen"]) == ("cat, big|red", "")
    assert {row["model"] for row in rows} == {MODEL}
    assert (rows[3]["label"], rows[3]["error"]) == ("", '3.png is broken, "quite", really')


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_names_of_any_letters_are_known_again(suffix, tmp_path):
    out = tmp_path / f"found{suffix}"
    names = ["a\u2028b.png", "ñandú, 鳥.png", "x\x85y.png", os.fsdecode(b"caf\xe9.png")]
    files = [Picture(name, Path(name)) for name in names]
    assert bulk(files, out, Model(), model=MODEL) == (4, 4, 0)
    assert bulk(files, out, Model(), model=MODEL) == (4, 0, 0)
    assert "ñandú, 鳥.png".encode() in out.read_bytes()


def test_parquet_refuses_a_name_that_is_no_text_before_any_work(tmp_path):
    files = [*FILES, Picture(os.fsdecode(b"caf\xe9.png"), Path("x"))]
    with pytest.raises(DataError, match=r"the name 'caf\\udce9.png' is no UTF-8, which Parquet asks for; rename it"):
        bulk(files, tmp_path / "a.parquet", Model(dies=0), model=MODEL)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_table_is_of_one_model(suffix, tmp_path):
    out = tmp_path / f"found{suffix}"
    bulk(FILES[:2], out, Model(), model=MODEL)
    moved, other = MODEL.replace("runs", "old-runs"), MODEL.replace("b", "c")
    assert bulk(FILES[:3], out, Model(), model=moved) == (3, 1, 0)
    before = out.read_bytes()
    with pytest.raises(DataError, match=rf"found\{suffix} was written by the model {MODEL}, and this is {other}; name"):
        bulk(FILES, out, Model(), model=other)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {out.name: before}


def test_a_journal_is_of_one_model(tmp_path):
    out, journal = tmp_path / "found.csv", tmp_path / "found.csv.partial"
    with pytest.raises(KeyboardInterrupt):
        bulk(FILES, out, Model(dies=2), model=MODEL)
    with pytest.raises(DataError, match=r"found\.csv\.partial was written by the model runs/demo@0123456789ab"):
        bulk(FILES, out, Model(), model="runs/demo@other")
    journal.write_text('{"path": "0.png"}\n')
    with pytest.raises(DataError, match=r"found\.csv\.partial is no table of predictions"):
        bulk(FILES, out, Model(), model=MODEL)
    journal.write_text("3\n")
    with pytest.raises(DataError, match=r"found\.csv\.partial is no table of predictions"):
        bulk(FILES, out, Model(), model=MODEL)


def test_bad_tables_are_told(tmp_path):
    with pytest.raises(ConfigError, match=r"\.csv"):
        bulk(FILES, tmp_path / "a.cvs", Model(), model=MODEL)
    (tmp_path / "b.csv").write_text("name,age\nx,3\n")
    with pytest.raises(DataError, match="no table of predictions"):
        bulk(FILES, tmp_path / "b.csv", Model(), model=MODEL)


DYING = """
import os, signal, sys
sys.path.insert(0, {here!r})
from pathlib import Path
from test_bulk import FILES, MODEL, Model
from vitrail.deploy.bulk import bulk

def answer(left):
    for place, found in enumerate(Model()(left)):
        yield found
        if place == 3:
            signal.raise_signal(signal.SIGKILL)

bulk(FILES, Path({out!r}), answer, model=MODEL)
"""


def test_a_process_that_is_killed_leaves_rows_that_are_not_done_again(tmp_path):
    out = tmp_path / "found.csv"
    script = DYING.format(here=str(Path(__file__).parent), out=str(out))
    died = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    model = Model()
    assert bulk(FILES, out, model, model=MODEL) == (6, 2, 1)
    assert model.asked == FILES[4:]
    assert paths(out) == NAMES
