"""Each consequence that a claim needs is found false in a system in which it is false by construction.

The false case of an experiment refutes its claim, but may leave some of its essential consequences true. Further
systems, here, are false in those; together they cover all, without an exception.
"""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from vitrail.lab import (
    EXPERIMENTS,
    Experiment,
    attention_matrix,
    attention_rank,
    data_size,
    diagonal_query,
    pac_bayes,
    rank_collapse,
    scaling_laws,
    temperature,
)
from vitrail.lab.norm_placement import NormPlacement

Case = Mapping[str, Any]


def unfair_attention() -> Case:
    """Rows with a bias by place, less a tenth, and logits whose variance does not depend on the width (cosines)."""
    bias = torch.linspace(-1, 1, 16)
    made = attention_matrix._case(
        lambda given: (given @ given.transpose(1, 2) + bias).softmax(dim=-1)[:, None] - 0.1, power=0.5
    )
    return {**made, "raw": [1.0] * len(made["widths"])}


def distances_as_logits() -> Case:
    """Squared distances of points in d dimensions have the rank d + 2."""
    (made,) = attention_rank.AttentionRank().true_case()
    points = [torch.randn(1, 32, width).double() for width in (2, 8)]
    ranks = [attention_rank._rank(torch.cdist(one, one).square()) / one.shape[-1] for one in points]
    return {**made, "logits": ranks}


def rows_that_sum_to_two() -> Case:
    """Its largest eigenvalue is 2."""
    return rank_collapse._case([2 * torch.eye(16)[None]] * 2)


def multiplied_by_the_temperature() -> Case:
    """Logits that are multiplied by the temperature instead of divided: what is measured comes in reverse order."""
    made = temperature._closed_form(tie=False)
    return {**made, "single": {key: values[::-1] for key, values in made["single"].items()}}


def a_diagonal_that_is_always_bright() -> Case:
    """Contents alone tell the arrangement, which is always the same."""
    contents = torch.tensor([1.0, 0.0, 0.0, 1.0]) + 0.1 * torch.rand(2000, 4)
    return {"lengths": [1.0], "shares": [1.0], **diagonal_query._told(contents, 50 * torch.eye(4))}


def pre_norm_tokens_that_double() -> Case:
    (made,) = NormPlacement().true_case()
    doubled = [2.0**block for block in range(made["depths"][0])]
    return {**made, "pre": {**made["pre"], "stream": [doubled]}}


def a_lead_that_grows() -> Case:
    return data_size._made([0.2, 0.3, 0.4, 0.5], [0.3, 0.5, 0.7, 0.9], early=(0.1, 0.5))


def a_law_that_ends() -> Case:
    """Losses fall by a power law, and are eight times as large from the size on that is kept back."""
    largest = 64_000.0  # of seven widths; of six numbers of images, it is half of that
    by_size = scaling_laws._made(lambda x: (0.3 + 5 * x**-0.4) * (8 if x >= largest else 1))
    by_count = scaling_laws._made(lambda x: (0.3 + 5 * x**-0.4) * (8 if x >= largest / 2 else 1))
    fits = {**by_size["fits"], "images": by_count["fits"]["images"]}
    return {**by_size, "counts": by_count["counts"], "fits": fits}


def a_bound_below_the_test_error() -> Case:
    (made,) = pac_bayes.PacBayes().true_case()
    return {**made, "best": {**made["best"], "test": 0.5}}


FURTHER: Mapping[str, Callable[[], Case]] = {
    "attention-matrix": unfair_attention,
    "attention-rank": distances_as_logits,
    "rank-collapse": rows_that_sum_to_two,
    "temperature": multiplied_by_the_temperature,
    "diagonal-query": a_diagonal_that_is_always_bright,
    "norm-placement": pre_norm_tokens_that_double,
    "data-size": a_lead_that_grows,
    "scaling": a_law_that_ends,
    "pac-bayes": a_bound_below_the_test_error,
}


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_each_consequence_that_the_claim_needs_fails_in_a_false_case(experiment: Experiment) -> None:
    torch.manual_seed(0)
    cases = [experiment.false_case()]
    if experiment.name in FURTHER:
        cases.append([FURTHER[experiment.name]()])
    verdicts = [experiment.verdict(case) for case in cases]
    assert {verdict.outcome for verdict in verdicts} == {"fails"}
    failed = {check.text for verdict in verdicts for check in verdict.checks if check.status == "fails"}
    needed = {check.text for check in verdicts[0].checks if check.essential}
    assert needed
    assert needed <= failed, needed - failed
