"""Networks by their names, and what is measured of them."""

import sys

import pytest
import torch
from support import processes
from support.compared_runs import NAMES as CLASSES

from vitrail.advice import networks
from vitrail.advice.networks import measure, memory, network, other_load, peak
from vitrail.data.targets import ClassTarget
from vitrail.errors import ConfigError

CPU = torch.device("cpu")
SCHEMA = {"label": ClassTarget(classes=CLASSES)}


def test_packaged_weights_recipes_and_names_can_be_measured() -> None:
    found = measure(["packaged", "demo", "vit32_small@32"], device=CPU, schema=SCHEMA)
    assert list(found) == ["packaged", "demo", "vit32_small@32"]
    assert all(row.values["ms"] > 0 and row.kind == "here" for row in found.values())


def test_the_load_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("os.getloadavg", lambda: (7.0, 0.0, 0.0))
    assert other_load() == 3
    monkeypatch.setattr("os.getloadavg", lambda: (0.2, 0.0, 0.0))
    assert other_load() == 0


@pytest.mark.parametrize(("load", "expected"), [(0.1, 20.0), (3.0, 5.0)])
def test_on_a_busy_machine_the_fastest_pass_counts(
    load: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "other_load", lambda: load)
    monkeypatch.setattr(networks, "interleaved", lambda passes, **how: {name: [0.005, 0.02, 0.9] for name in passes})
    assert measure(["demo"], device=CPU)["demo"].values["ms"] == pytest.approx(expected)


def test_an_unknown_network_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown"):
        network("nothing-like-it")


def test_the_memory_of_a_process_is_not_that_of_the_one_that_started_it() -> None:
    held = bytearray(b"1") * (300 << 20)
    words = [sys.executable, "-c", "from vitrail.advice.networks import peak; print(peak())"]
    assert int(processes.run(words).stdout) < peak()
    assert peak() > len(held)


@pytest.mark.slow
def test_memory_of_a_process() -> None:
    assert 50 < memory("demo", SCHEMA).values["mib"] < 4000
