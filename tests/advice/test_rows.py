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


def test_the_default_was_measured_on_the_sets_of_the_first_try() -> None:
    sets = {row.set: row.values for row in packaged_rows() if row.of == "default"}
    assert sets.keys() == {cell.name for cell in measured()}
    for cell in measured():
        assert [sets[cell.name][name] for name in ("images", "classes", "pixels", "grey")] == [
            cell.images, cell.classes, cell.pixels, cell.grey,
        ]  # fmt: skip
        assert sets[cell.name]["like"] in cell.results
