"""Counting against an independent framework count, published numbers and real runs."""

import math

import pytest
import torch
from support.counted import NAMES, PLAIN, SMALL, VARIANTS, framework_macs, kept, really_kept, rows, small
from support.registered import one_of_each_design

import vitrail
from vitrail.errors import ConfigError
from vitrail.profiling import cost, sketch


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("vit_base_patch16", 86_567_656),
        ("vit_large_patch16", 304_326_632),
        ("vit_huge_patch14", 632_045_800),
        ("vit32_small", 5_362_762),
        ("vit32_base", 21_342_346),
        ("vit32_large", 75_722_250),
    ],
)
def test_published_parameter_counts(name, parameters):
    assert cost(name).parameters == parameters


def test_published_macs():
    assert cost("vit32_small").macs / 1e9 == pytest.approx(0.365, abs=5e-4)
    assert 2 * cost("vit32_small").macs / 1e9 == pytest.approx(0.73, abs=5e-3)
    assert cost("vit_base_patch16").macs / 1e9 == pytest.approx(17.56, abs=0.05)  # with attention's own products


QUICK = one_of_each_design()  # the framework counts slowly


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in NAMES])
def test_macs_equal_the_framework_count(name):
    # Two blocks are like all others.
    model = sketch(name, depth=2) if name in PLAIN else sketch(name)
    assert cost(model).macs == framework_macs(model)


@pytest.mark.parametrize("name", ["vit32_small", "vit_base_patch16"])
def test_macs_equal_the_framework_count_at_full_depth(name):
    assert cost(name).macs == framework_macs(sketch(name))


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_equal_the_truth_and_the_framework_count(variant):
    model = small(variant)
    found = cost(model)
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.macs == framework_macs(model.to("meta"))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "rms"])  # a CPU runs RMSNorm step by step
def test_kept_bytes_equal_a_real_run(variant, batch):
    model = small(variant)
    assert kept(model, batch=batch) == really_kept(model, torch.randn(batch, 3, *model.config.image_size))


@pytest.mark.parametrize("fused", [True, False])
def test_checkpointing_keeps_the_inputs_of_blocks_alone(fused):
    model = small(attention={"fused": fused})
    model.checkpointing = True
    tokens = 4 * 5 * 32 * 4  # bytes of B P+N D
    report = rows(vitrail.describe(model, batch=4))
    assert report["blocks.0-1"]["activations"] == 2 * tokens
    assert kept(model, batch=4) == really_kept(model, torch.randn(4, 3, 32, 32))


def growth(*, fused: bool, checkpointing: bool) -> float:
    """The exponent of kept bytes in blocks against the number of tokens, at sizes where it has settled."""
    found = []
    for side in (64, 128):
        changes = {**SMALL, "image_size": 4 * side, "patch": {"size": 4}, "attention": {"fused": fused}}
        model = sketch("vit_tiny_patch16", **changes)
        model.checkpointing = checkpointing
        found.append((side * side, rows(vitrail.describe(model))["blocks.0-1"]["activations"]))
    (few, less), (many, more) = found
    return math.log(more / less) / math.log(many / few)


def test_kept_bytes_grow_quadratically_only_when_explicit_and_not_checkpointed():
    assert growth(fused=False, checkpointing=False) == pytest.approx(2, abs=0.1)
    assert growth(fused=False, checkpointing=True) == pytest.approx(1, abs=0.01)
    assert growth(fused=True, checkpointing=False) == pytest.approx(1, abs=0.01)
    assert growth(fused=True, checkpointing=True) == pytest.approx(1, abs=0.01)


def test_frozen_layers_keep_nothing():
    model = small()
    model.requires_grad_(False)
    model.head.requires_grad_(True)
    report = vitrail.describe(model)
    assert {name for name, row in rows(report).items() if row["activations"]} == {"head", "total"}
    assert report["Totals"].values["trainable parameters"] == 32 * 5 + 5


def test_weights_read_without_a_call_belong_to_their_reader():
    deep = rows(vitrail.describe(small(), depth=3))
    assert "patch.projection" not in deep  # a matrix product with the convolution's weights
    assert deep["patch"]["parameters"] == 3 * 16 * 16 * 32 + 32


def test_an_object_that_is_not_a_model_is_refused():
    with pytest.raises(ConfigError, match="model"):
        cost(None)
