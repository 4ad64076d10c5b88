"""Named sizes have the published parameters and multiply-accumulates."""

import pytest

from vitrail.models.registry import create
from vitrail.profiling import cost

# Parameters: papers and cards. GMACs: timm's tables (results/benchmark-infer-amp-nchw-pt291-cu128-4090.csv); they count
# norms too, so that ours are fewer by less than 1 %.
PUBLISHED = {
    "vit_tiny_patch16": (5_717_416, 1.26),
    "vit_small_patch16": (22_050_664, 4.61),
    "vit_base_patch16": (86_567_656, 17.58),
    "vit_base_patch32": (88_224_232, 4.41),
    "vit_large_patch16": (304_326_632, 61.6),
    "vit_huge_patch14": (632_045_800, 167.4),
    "deit_tiny_distilled_patch16": (5_910_800, 1.27),
    "deit_small_distilled_patch16": (22_436_432, 4.63),
    "deit_base_distilled_patch16": (87_338_192, 17.68),
    "deit3_base_patch16": (86_585_320, 17.58),
    # The cards of DINOv2 count the mask token of its pre-training, one vector more.
    "vit_small_patch14_dinov2": (22_056_576 - 384, 46.76),
    "vit_base_patch14_dinov2": (86_580_480 - 768, 151.71),
    "vit_large_patch14_dinov2": (304_368_640 - 1024, 507.15),
    "vit_giant_patch14_dinov2": (1_136_480_768 - 1536, 1784.2),
    "beit_base_patch16": (86_530_984, 17.58),
}
# Those whose parameters the same tables round to millions.
ROUNDED = {
    "vit_base_patch8": (86.58, 78.22),
    "vit_large_patch14": (304.20, 81.08),
    "deit_tiny_patch16": (5.72, 1.26),
    "deit_small_patch16": (22.05, 4.61),
    "deit_base_patch16": (86.57, 17.58),
    "vit_base_patch14_reg4_dinov2": (86.58, 152.25),
    "vit_small_patch16_dinov3": (21.59, 6.26),
    "vit_small_plus_patch16_dinov3": (28.68, 8.11),
    "vit_huge_plus_patch16_dinov3": (840.51, 224.88),
    "vit_base_patch16_siglip": (92.88, 17.73),
    "vit_so400m_patch14_siglip": (427.68, 110.26),
    "eva02_tiny_patch14": (5.76, 4.68),
    "eva02_base_patch14": (87.12, 107.11),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_the_published_ones(name):
    parameters, gmacs = PUBLISHED[name]
    found = cost(name)
    assert found.parameters == parameters
    assert found.macs / 1e9 == pytest.approx(gmacs, rel=0.01)


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_sizes_are_the_published_ones(name):
    millions, gmacs = ROUNDED[name]
    found = cost(name)
    assert found.parameters / 1e6 == pytest.approx(millions, abs=0.011)
    assert found.macs / 1e9 == pytest.approx(gmacs, rel=0.01)


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
