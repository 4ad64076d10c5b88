"""Counts equal the closed form of the cost, for every plain ViT and every option."""

from dataclasses import replace

import pytest
import torch
from support import cost_formula as formula
from support.counted import PLAIN, VARIANTS, kept, small

from vitrail.errors import Unsupported
from vitrail.models.registry import resolve
from vitrail.profiling import Cost, cost, sketch


@pytest.mark.parametrize("name", PLAIN)
def test_counting_equals_the_formula(name):
    config = resolve(name)[1]
    expected = Cost(sum(formula.parameters(config).values()), sum(formula.macs(config).values()))
    assert cost(name) == expected


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_equal_the_formula(variant, batch):
    model = small(variant)
    assert cost(model).parameters == sum(formula.parameters(model.config).values())
    assert cost(model).macs == sum(formula.macs(model.config).values())
    assert kept(model, batch=batch) == sum(formula.kept(model.config, batch=batch).values())


@pytest.mark.parametrize("name", PLAIN)
def test_kept_bytes_equal_the_formula_for_every_name(name):
    config = replace(resolve(name)[1], depth=2)
    assert kept(sketch(name, depth=2), batch=2) == sum(formula.kept(config, batch=2).values())


@pytest.mark.parametrize(
    "changes", [{"dropout": 0.1, "drop_path": 0.1, "attention": {"dropout": 0.1}}, {"norm": "rms"}]
)
def test_kept_bytes_where_accelerators_differ_from_this_machine(changes):
    """Statistics in float32, masks of one byte, fused RMSNorm: the formula describes a GPU."""
    model = small(**changes).to(torch.bfloat16)
    assert kept(model, batch=4) == sum(formula.kept(model.config, batch=4, itemsize=2).values())


def test_what_has_no_closed_form_says_so():
    with pytest.raises(Unsupported, match="norms elsewhere"):
        formula.kept(small(norm_placement="post").config)
    with pytest.raises(Unsupported, match="not fused"):
        formula.kept(small(attention={"fused": False}).config)
