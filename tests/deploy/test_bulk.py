import csv
import json
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
                yield Prediction(file.name, (Answer("cat, big", 0.75, True), Answer("dog", 0.25, False)))


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
        bulk(FILES, out, Model(dies=2))
    assert not out.exists()
    journal = tmp_path / f"found{suffix}.partial"
    with journal.open("a") as file:
        file.write('{"path": "2.p')  # a line that was cut
    model = Model()
    assert bulk(FILES, out, model) == (6, 4, 1)
    assert model.asked == FILES[2:]
    assert paths(out) == NAMES
    assert not journal.exists()


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_finished_table_grows_by_what_is_new(suffix, tmp_path):
    out, model = tmp_path / f"found{suffix}", Model()
    bulk(FILES[:4], out, model)
    assert bulk([*FILES, FILES[0]], out, model) == (6, 2, 1)
    assert model.asked == FILES
    assert paths(out) == NAMES


def test_values_survive_csv(tmp_path):
    bulk(FILES, tmp_path / "a.csv", Model())
    bulk(FILES, tmp_path / "a.csv", Model())  # reads them back
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert tuple(rows[0]) == COLUMNS
    assert (rows[0]["label"], float(rows[0]["probability"])) == ("cat, big", 0.75)
    assert json.loads(rows[0]["answers"]) == [["cat, big", 0.75], ["dog", 0.25]]
    assert (rows[3]["label"], rows[3]["error"]) == ("", '3.png is broken, "quite", really')


def test_bad_tables_are_told(tmp_path):
    with pytest.raises(ConfigError, match=r"\.csv"):
        bulk(FILES, tmp_path / "a.cvs", Model())
    (tmp_path / "b.csv").write_text("name,age\nx,3\n")
    with pytest.raises(DataError, match="no table of predictions"):
        bulk(FILES, tmp_path / "b.csv", Model())


DYING = """
import os, signal, sys
sys.path.insert(0, {here!r})
from pathlib import Path
from test_bulk import FILES, Model
from vitrail.deploy.bulk import bulk

def answer(left):
    for place, found in enumerate(Model()(left)):
        yield found
        if place == 3:
            signal.raise_signal(signal.SIGKILL)

bulk(FILES, Path({out!r}), answer)
"""


def test_a_process_that_is_killed_leaves_rows_that_are_not_done_again(tmp_path):
    out = tmp_path / "found.csv"
    script = DYING.format(here=str(Path(__file__).parent), out=str(out))
    died = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    model = Model()
    assert bulk(FILES, out, model) == (6, 2, 1)
    assert model.asked == FILES[4:]
    assert paths(out) == NAMES
