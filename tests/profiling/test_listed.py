"""The table of costs in the package agrees with counting."""

import pytest
from support import cost_formula as formula
from support.counted import NAMES, PLAIN
from support.registered import one_of_each_design

from vitrail.models.registry import resolve
from vitrail.profiling import cost, listed
from vitrail.profiling.listed import listed_cost
from vitrail.profiling.listed_costs import COSTS

QUICK = [name for name in one_of_each_design() if name not in PLAIN]


def test_table_has_every_name_and_no_other():
    assert list(COSTS) == NAMES, "python -m vitrail.profiling.listed"


def test_plain_sizes_are_those_of_the_closed_form():
    for name in PLAIN:
        config = resolve(name)[1]
        assert listed_cost(name) == (sum(formula.parameters(config).values()), sum(formula.macs(config).values())), name


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in NAMES])
def test_sizes_are_those_of_a_count(name):
    assert listed_cost(name) == cost(name), "python -m vitrail.profiling.listed"


def test_a_new_size_is_counted(monkeypatch):
    monkeypatch.delitem(COSTS, "vit32_small")
    assert listed_cost("vit32_small") == cost("vit32_small")


def test_what_is_written_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(listed, "list_models", lambda: ["vit32_small", "resnet18"])
    listed.write(tmp_path / "listed_costs.py")
    written: dict = {}
    exec((tmp_path / "listed_costs.py").read_text(), written)
    assert written["COSTS"] == {"vit32_small": COSTS["vit32_small"], "resnet18": COSTS["resnet18"]}
