"""Names: ours, timm's, and those that do not exist."""

import pytest

from vitrail.config import apply
from vitrail.errors import ConfigError, InputError
from vitrail.models.deit import DeiT
from vitrail.models.registry import FAMILIES, create, list_models, name_of, presets, resolve
from vitrail.models.vit import ViT

TIMM = {
    "vit_base_patch16_384.augreg_in1k": ("vit_base_patch16", (384, 384)),
    "vit_base_patch16_224": ("vit_base_patch16", (224, 224)),
    "vit_small_patch14_dinov2.lvd142m": ("vit_small_patch14_dinov2", (518, 518)),
    "vit_small_patch16_dinov3.lvd1689m": ("vit_small_patch16_dinov3", (256, 256)),
    "vit_base_patch16_clip_224.openai": ("vit_base_patch16_clip", (224, 224)),
    "vit_large_patch14_clip_quickgelu_336.openai": ("vit_large_patch14_clip_quickgelu", (336, 336)),
    "vit_base_patch16_siglip_512.webli": ("vit_base_patch16_siglip", (512, 512)),
    "deit_base_distilled_patch16_384.fb_in1k": ("deit_base_distilled_patch16", (384, 384)),
    "deit3_large_patch16_224.fb_in22k_ft_in1k": ("deit3_large_patch16", (224, 224)),
    "beit_base_patch16_224.in22k_ft_in22k_in1k": ("beit_base_patch16", (224, 224)),
    "eva02_base_patch14_448.mim_in22k_ft_in1k": ("eva02_base_patch14", (448, 448)),
}


@pytest.mark.parametrize(("alias", "expected"), TIMM.items(), ids=TIMM.keys())
def test_timm_names_are_known(alias, expected):
    name, size = expected
    family, config = resolve(alias)
    assert (family, config.dim) == (resolve(name)[0], resolve(name)[1].dim)
    assert config.image_size == size


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vit_smal_patch16", "'vit_small_patch16'"),
        ("vit_tiny", "'vit_tiny_patch16'"),
        ("vit_base_patch16_clip_wide_224", "'vit_base_patch16_clip'"),
        ("alexnet", "vitrail models"),
        ("", "vitrail models"),
        ("vit_base_patch16_", "vit_base_patch16"),
    ],
)
def test_unknown_names_show_the_nearest(name, message):
    with pytest.raises(ConfigError) as caught:
        create(name)
    assert message in str(caught.value)


@pytest.mark.parametrize("pretrained", [True, False])
def test_pretrained_weights_are_loaded_not_created(pretrained):
    with pytest.raises(ConfigError, match=r"vitrail\.load.*timm") as caught:
        create("vit_tiny_patch16_224", pretrained=pretrained)
    assert "vit_tiny_patch16_224" in str(caught.value)
    with pytest.raises(ConfigError, match="load"):
        create("no such model", pretrained=pretrained)


def test_create_changes_the_config():
    model = create("vit_tiny_patch16", depth=1, num_classes=7, attention={"qk_norm": True}, position="rope")
    assert isinstance(model, ViT)
    assert model.config.num_classes == model.head.out_features == 7
    assert model.config.attention.qk_norm
    assert model.config.attention.bias == "qkv"
    assert model.config.dim == 192
    assert type(create("deit_tiny_distilled_patch16", depth=1)) is DeiT


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_clases": 3}, "num_clases is not an option of ViTConfig; did you mean 'num_classes'?"),
        (
            {"attention": {"qknorm": True}},
            "attention.qknorm is not an option of SoftmaxConfig; did you mean 'qk_norm'?",
        ),
        ({"position": "rop"}, "position[0] has no kind 'rop'; did you mean 'rope'?"),
        ({"num_heads": 5}, "num_heads 5"),
        ({"drop_path": 1.0}, "drop_path is 1.0; it must be at least 0 and less than 1"),
    ],
)
def test_changes_that_do_not_fit_are_explained(changes, message):
    with pytest.raises(ConfigError) as caught:
        create("vit_tiny_patch16", **changes)
    assert message in str(caught.value)


def test_an_image_size_that_does_not_divide_is_refused_at_the_start():
    with pytest.raises(InputError, match="224 x 224"):
        create("vit_tiny_patch16_225")


def test_a_preset_is_not_changed_by_what_is_made_of_it():
    before = resolve("vit_tiny_patch16")[1]
    create("vit_tiny_patch16", depth=1, image_size=64)
    assert resolve("vit_tiny_patch16")[1] == before
    assert before.depth == 12


def test_list_models_matches_patterns_and_words():
    assert list_models() == list(presets())
    assert list_models("vit_*_patch32") == [f"vit_{s}_patch32" for s in ("tiny", "small", "base", "large", "huge")]
    assert all("dinov3" in name for name in list_models("dinov3"))
    assert len(list_models("dinov3")) > 3
    assert list_models("no such thing") == []
    assert set(list_models("distilled")) == set(FAMILIES["deit"].presets)


def test_a_size_is_known_again_by_its_config():
    twins = {name: other for name, (config, _) in presets().items() if (other := name_of(config)) != name}
    assert all(presets()[other].config == presets()[name].config for name, other in twins.items() if other is not None)
    assert None not in twins.values()
    trained = {"image_size": 64, "channels": 1, "num_classes": 3, "drop_path": 0.2, "dropout": 0.1}
    assert name_of(apply(resolve("deit_small_patch16")[1], trained)) == "deit_small_patch16"
    assert name_of(apply(resolve("deit_small_patch16")[1], {"depth": 3})) is None
