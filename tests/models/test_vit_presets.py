"""Named sizes have the parameter counts that their papers and model cards publish."""

import pytest
import torch

from vitrail.models.registry import build, create, resolve

PUBLISHED = {
    "vit_tiny_patch16": 5_717_416,
    "vit_small_patch16": 22_050_664,
    "vit_base_patch16": 86_567_656,
    "vit_base_patch32": 88_224_232,
    "vit_large_patch16": 304_326_632,
    "vit_huge_patch14": 632_045_800,
    "deit_tiny_distilled_patch16": 5_910_800,
    "deit_small_distilled_patch16": 22_436_432,
    "deit_base_distilled_patch16": 87_338_192,
    "deit3_base_patch16": 86_585_320,
    # The cards of DINOv2 count the mask token of its pre-training, one vector more.
    "vit_small_patch14_dinov2": 22_056_576 - 384,
    "vit_base_patch14_dinov2": 86_580_480 - 768,
    "vit_large_patch14_dinov2": 304_368_640 - 1024,
    "vit_giant_patch14_dinov2": 1_136_480_768 - 1536,
    "beit_base_patch16": 86_530_984,
}


def count(name):
    family, config = resolve(name)
    with torch.device("meta"):
        model = build(family, config)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_are_the_published_ones(name):
    assert count(name) == PUBLISHED[name]


@pytest.mark.parametrize(("name", "tokens"), [("vit_base_patch16", 197), ("vit32_small", 65), ("vit_base_patch32", 50)])
def test_sequence_lengths_are_the_published_ones(name, tokens):
    table = create(name, depth=0).position[0].table
    assert len(table) == tokens


def test_a_simple_vit_has_no_learned_positions_and_no_class_token():
    model = create("simple_vit_tiny_patch16", depth=1)
    learned = {name for name, _ in model.named_parameters()}
    assert not any(name.startswith(("position", "prefix")) for name in learned)


def test_a_dinov3_has_registers_and_rotary_positions_alone():
    model = create("vit_small_patch16_dinov3", depth=1)
    assert len(model.position) == 0
    assert model.prefix.count == 5
    assert model.blocks[0].attention.rope is not None
