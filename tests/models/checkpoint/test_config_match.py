"""When two configs are of one model, as far as weights go."""

from pathlib import Path

import pytest
from parity.compare import hint

from vitrail.errors import CheckpointError
from vitrail.models.checkpoint.config_match import check_match, structure
from vitrail.models.registry import presets

FILE = Path("some.safetensors")


@pytest.mark.parametrize("changes", [{"image_size": 384}, {"num_classes": 3}, {"drop_path": 0.2}, {"pool": "mean"}])
def test_options_without_weights_may_differ(changes):
    assert structure(hint("vit_base_patch16", **changes)) == structure(hint("vit_base_patch16"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"depth": 11}, "depth is 11, not 12"),
        ({"num_heads": 6}, "num_heads is 6, not 12"),
        ({"position": "none"}, r"position is \(\), not \('learned',\)"),
        ({"final_norm": "none"}, "final_norm is False, not True"),
        ({"attention": {"bias": "none"}}, "attention bias is none, not qkv"),
        ({"patch": {"size": 14}}, "patch is .*14.*, not .*16"),
    ],
)
def test_what_does(changes, says):
    with pytest.raises(CheckpointError, match=says):
        check_match(hint("vit_base_patch16", **changes), hint("vit_base_patch16"), by="x", path=FILE)


def test_families_differ_and_parts_can_be_left_out():
    with pytest.raises(CheckpointError, match="family is DeiTConfig, not ViTConfig"):
        check_match(hint("deit_base_distilled_patch16"), hint("vit_base_patch16"), by="x", path=FILE)
    check_match(hint("vit_base_patch16", depth=3), hint("vit_base_patch16"), by="x", path=FILE, ignoring={"depth"})


def test_every_preset_has_a_structure():
    for preset in presets().values():
        found = structure(preset.config)
        assert found.get("dim", 0) > 0 or len(found["dims"]) == len(found["depths"])


def test_stages_that_differ_are_named():
    with pytest.raises(CheckpointError, match=r"depths is \(2, 2, 18, 2\), not \(2, 2, 6, 2\)"):
        check_match(hint("swin_small_patch4_window7"), hint("swin_tiny_patch4_window7"), by="x", path=FILE)
