import math

import pytest
import torch

from vitrail.lab.cost_model import _counted, _kept, _layer, _nodes, formula
from vitrail.models.registry import create
from vitrail.profiling import sketch
from vitrail.profiling.count import blank_images, count


def test_the_parts_of_a_vit_are_those_of_its_formula() -> None:
    found = _counted(sketch("vit_small_patch16"))
    tokens, dim = 197, 384
    parts = {
        "patch": 196 * dim * 3 * 16 * 16,
        "projections": 12 * 4 * tokens * dim**2,
        "products": 12 * 2 * tokens**2 * dim,
        "mlp": 12 * 8 * tokens * dim**2,
        "head": dim * 1000,
    }
    for part, macs in parts.items():
        assert math.isclose(found["shares"][part], macs / sum(parts.values()), rel_tol=1e-9), part
    assert math.isclose(found["model"], sum(parts.values()) / (12 * formula(tokens, dim)), rel_tol=1e-9)


def test_explicit_attention_keeps_its_matrix_and_fused_attention_does_not() -> None:
    kept = {kind: _kept(*_layer(256, 32, 2, kind, torch.device("cpu"))) for kind in ("explicit", "fused")}
    matrix = 2 * 256 * 256 * 4  # heads, tokens, tokens, bytes
    assert matrix <= kept["explicit"] - kept["fused"] + 10 * 256 * 32 * 4
    assert kept["fused"] < matrix


@pytest.mark.parametrize("kind", ["explicit", "fused"])
def test_autograd_keeps_the_bytes_that_the_counter_says(kind: str) -> None:
    model = create(
        "vit_tiny_patch16", depth=2, class_token=False, pool="mean", attention={"fused": kind == "fused"}, image_size=64
    )
    tree = count(model, blank_images(model, None, 1))
    (counted,) = (node.total[2] for node in _nodes(tree) if node.path == "blocks.1.attention")
    assert _kept(*_layer(16, 192, 3, kind, torch.device("cpu"))) == counted
