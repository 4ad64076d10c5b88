"""The measured rows of the package: whole, sourced, and those of the benchmark's file."""

import json
from pathlib import Path

from vitrail.advice.rows import machines, packaged_rows, rows_of_cells
from vitrail.packaged import NAMES
from vitrail.recipes import list_recipes
from vitrail.training.first_try import measured

RESULTS = Path(__file__).parents[2] / "benchmarks" / "recipes.json"


def test_every_row_names_its_command_hardware_and_versions() -> None:
    for row in [*packaged_rows(), *rows_of_cells(measured())]:
        assert row.command
        assert row.hardware
        assert "torch" in row.versions
        assert row.text()


def test_results_are_those_of_the_benchmark() -> None:
    tests = {entry["test"] for entry in json.loads(RESULTS.read_text())}
    for row in packaged_rows():
        if row.kind == "result" and row.of in list_recipes():
            assert set(row.values["tests"]) <= tests


def test_a_median_of_seeds() -> None:
    row = next(row for row in packaged_rows() if row.of == "cifar10-conv")
    assert row.values["test"] == 0.9737
    assert "97.4 %" in row.text()
    assert row.values["seconds"] == 633.9


def test_speeds_are_of_networks_and_machines_that_exist() -> None:
    for row in packaged_rows():
        if row.kind in ("speed", "engine"):
            assert row.of.partition("@")[0] in (*NAMES, *list_recipes())
        if row.kind == "speed":
            assert machines()[row.values["machine"]] == row.values["device"]
            assert (row.values["machine"] == "h200") == ("H200" in row.hardware) == ("--machine h200" in row.command)
            assert row.values["low"] <= row.values["ms"] <= row.values["high"]


def test_rows_of_the_gpu() -> None:
    rows = [row for row in packaged_rows() if row.values.get("machine") == "h200"]
    speeds = {row.of: row.values["ms"] for row in rows if row.kind == "speed"}
    assert {"packaged", "packaged-photos", "packaged-photos@96", "packaged-photos@256", "demo"} <= speeds.keys()
    photos = [ms for name, ms in speeds.items() if name.startswith("packaged-photos")]
    assert max(photos) < 1.1 * min(photos)  # launches, whatever the size; advice says so
    (training,) = (row for row in rows if row.kind == "training")
    assert training.of == "default"
    assert "choice between two image sizes" in training.text()


def test_rows_say_what_is_not_known_of_them() -> None:
    default = next(row for row in packaged_rows() if row.of == "default")
    assert "validation not kept" in default.text()
    assert "validation" not in next(iter(rows_of_cells(measured()))).text()
    large = [row for row in packaged_rows() if row.kind == "engine" and row.of == "packaged-photos@256"]
    assert large
    assert all("doubtful" in row.values["note"] for row in large)


def test_the_default_was_measured_on_the_sets_of_the_first_try() -> None:
    sets = {row.set: row.values for row in packaged_rows() if (row.kind, row.of) == ("result", "default")}
    assert sets.keys() == {cell.name for cell in measured()}
    for cell in measured():
        assert [sets[cell.name][name] for name in ("images", "classes", "pixels", "grey")] == [
            cell.images, cell.classes, cell.pixels, cell.grey,
        ]  # fmt: skip
        assert sets[cell.name]["like"] in cell.results
