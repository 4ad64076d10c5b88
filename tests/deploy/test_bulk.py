import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from vitrail.deploy.bulk import COLUMNS, bulk
from vitrail.errors import ConfigError, DataError
from vitrail.tasks.predict import Answer, Prediction

FILES = [Path(f"{number}.png") for number in range(6)]


class Model:
    """Answers, and dies after some."""

    def __init__(self, dies: int | None = None) -> None:
        self.dies, self.asked = dies, []

    def __call__(self, files: Sequence[Path]) -> Iterator[Prediction]:
        for place, file in enumerate(files):
            if place == self.dies:
                raise KeyboardInterrupt
            self.asked.append(file)
            if file.name == "3.png":
                yield Prediction(str(file), error='3.png is broken, "quite", really')
            else:
                yield Prediction(str(file), (Answer("cat, big", 0.75, True), Answer("dog", 0.25, False)))


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
    assert paths(out) == [str(file) for file in FILES]
    assert not journal.exists()


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_finished_table_grows_by_what_is_new(suffix, tmp_path):
    out, model = tmp_path / f"found{suffix}", Model()
    bulk(FILES[:4], out, model)
    assert bulk([*FILES, FILES[0]], out, model) == (6, 2, 1)
    assert model.asked == FILES
    assert paths(out) == [str(file) for file in FILES]


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
