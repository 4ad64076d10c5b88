"""The benchmark of advice: sets are left out with all of their rows."""

import pytest
from support.benchmarks import benchmark as load_benchmark

benchmark = load_benchmark("advice")


def test_every_set_is_advised_from_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.left_out()
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| ")][1:]
    sets = {row.set for row in benchmark.packaged_rows() if row.kind == "result" and row.values["task"] == "classify"}
    assert sets <= {row[0].removeprefix("| ") for row in rows}
    cifar = next(row for row in rows if row[0] == "| cifar10")
    assert cifar[1] != "cifar10-conv"  # whose only rows were left out
    assert cifar[4] == "cifar10-conv"


def test_the_facts_of_a_set_are_those_of_its_row() -> None:
    row = next(row for row in benchmark.packaged_rows() if row.of == "fashion-mnist")
    facts = benchmark.facts_of_row(row)
    assert (facts.images, facts.pixels, facts.grey) == (58800, 28, True)
    assert facts.distance(row.values) == 0
