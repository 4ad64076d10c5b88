"""Every family that a peer has: its weights, saved as the peer does, give the same logits and levels here."""

from pathlib import Path

import pytest
import torch
from parity.compare import Case, compare, randomise
from parity.families import family_cases, from_hf
from support.peers import timm, transformers
from support.registered import shrunk

import vitrail
from vitrail.config import apply
from vitrail.errors import CheckpointError, HeadNotice, Unsupported
from vitrail.models.checkpoint.dialect import to_ours, to_theirs
from vitrail.models.checkpoint.families import TRANSLATIONS
from vitrail.models.checkpoint.files import Weights
from vitrail.models.checkpoint.translation import Translation, only, timm_card
from vitrail.models.initialise import SkipInit
from vitrail.models.registry import FAMILIES, build, create, resolve

SMALL = {"dims": (8, 16, 32, 64), "depths": (2, 2, 2, 2), "num_heads": (1, 2, 2, 4)}
# What a peer's models have and our presets, which are another's, have not; small where the peer's config may be.
THEIRS = {
    "hf efficientnet": {"pad_after": (True, True, False, True, True), "eps": 1e-3},
    "timm swin": {"attention": {"padding": "after_shift"}},
    "timm swin_v2": {"attention": {"padding": "after_shift"}},
    "hf swin": SMALL | {"attention": {"padding": "before_shift"}},
    "hf swin_v2": SMALL | {"attention": {"padding": "before_shift"}},
}
every_translation = pytest.mark.parametrize("translation", TRANSLATIONS, ids=lambda each: each.name)


@pytest.mark.parametrize("case", family_cases(), ids=lambda case: f"{case.peer} {case.name}")
def test_parity(case: Case, tmp_path: Path) -> None:
    assert compare(case, tmp_path).worst <= 1e-10


@every_translation
def test_rules_are_a_round_trip(translation: Translation) -> None:
    family = FAMILIES[translation.family]
    name, preset = next(iter(family.presets.items()))
    # Hugging Face's MobileViT has as many blocks as the published ones.
    config = preset.config if translation.name == "hf mobilevit" else shrunk(name)
    model = randomise(build(family, apply(config, translation.own)))
    theirs = to_theirs(model, translation.rules(model.config))
    assert all(mark in theirs for mark in translation.marks)
    weights = Weights(path=Path("x"), tensors=theirs, metadata={})
    found = translation.read(weights, model.config)
    again = to_ours(found, model)
    for name, tensor in model.state_dict().items():
        assert torch.equal(again[name], tensor), name


@every_translation
@pytest.mark.parametrize("said", [True, False], ids=["named with its classes", "named without"])
def test_classes_are_counted_in_the_file(translation: Translation, said: bool) -> None:
    family = FAMILIES[translation.family]
    name, preset = next(iter(family.presets.items()))
    config = apply(preset.config if translation.name == "hf mobilevit" else shrunk(name), translation.own)
    with SkipInit():
        model = build(family, apply(config, {"num_classes": 7}))
    theirs = to_theirs(model, translation.rules(model.config))
    hint = apply(config, {"num_classes": 7 if said else 1000})
    found = translation.read(Weights(path=Path("x"), tensors=theirs, metadata={}), hint)
    assert found.config.num_classes == 7
    to_ours(found, model)


@pytest.mark.parametrize(
    "name", ["convnext_atto", "resnet18", "swin_tiny_patch4_window7_224", "mobilevit_xxs", "vit_tiny_patch16_224"]
)
def test_a_fine_tuned_file_of_timm_loads(name: str, tmp_path: Path) -> None:
    with SkipInit():
        theirs = timm.create_model(name, num_classes=7)
    torch.save(theirs.state_dict(), tmp_path / "tuned.pth")
    assert vitrail.load(tmp_path / "tuned.pth", model=name).config.num_classes == 7
    assert vitrail.load(tmp_path / "tuned.pth", model=name, num_classes=7).config.num_classes == 7
    with pytest.warns(HeadNotice, match="7"):
        assert vitrail.load(tmp_path / "tuned.pth", model=name, num_classes=3).config.num_classes == 3
    with SkipInit():
        theirs.reset_classifier(0)
    torch.save(theirs.state_dict(), tmp_path / "bare.pth")
    assert vitrail.load(tmp_path / "bare.pth", model=name).config.num_classes == 0


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
@pytest.mark.parametrize("version", ["Swin", "Swinv2"])
def test_swin_of_any_number_of_stages(version: str, stages: int, tmp_path: Path) -> None:
    sizes = {"depths": [1] * stages, "num_heads": [2] * stages, "embed_dim": 8, "window_size": 2}
    if version == "Swinv2":
        sizes["pretrained_window_sizes"] = [0] * stages
    case = from_hf(f"{version}ForImageClassification", image_size=(128, 128), built_for=128, num_labels=7, **sizes)
    assert compare(case, tmp_path).worst <= 1e-10


@every_translation
def test_without_a_config_the_model_must_be_named(translation: Translation) -> None:
    with pytest.raises(CheckpointError, match="name the model"):
        translation.read(Weights(path=Path("x"), tensors={}, metadata={}), None)


def test_a_mobilevit_of_other_depths_has_no_words_at_hugging_face() -> None:
    translation = next(each for each in TRANSLATIONS if each.name == "hf mobilevit")
    model = build(FAMILIES["mobilevit"], shrunk("mobilevit_s"))
    with pytest.raises(Unsupported, match=r"this one has \(1, 1, 1, 2, 1\) and \(1, 1, 1\)"):
        translation.write(model)


def test_an_architecture_that_is_no_preset_is_named() -> None:
    translation = next(each for each in TRANSLATIONS if each.name == "timm swin")
    beside = {"architecture": "swin_giant_patch4_window7_224"}
    weights = Weights(path=Path("x"), tensors={}, metadata={}, config=beside)
    message = r"swin_giant"
    with pytest.raises(CheckpointError, match=message):
        translation.read(weights, None)


@every_translation
def test_what_is_written_is_read_back(translation: Translation, tmp_path: Path) -> None:
    family = FAMILIES[translation.family]
    config = apply(next(iter(family.presets.values())).config, THEIRS.get(translation.name, {}))
    with SkipInit():
        model = build(family, config).bfloat16()  # half of what is written and hashed
    if translation.describe is None:
        with pytest.raises(Unsupported, match="does not write"):
            translation.write(model)
        return
    vitrail.save(model, tmp_path / "ours")
    file = vitrail.convert(tmp_path / "ours", tmp_path / "theirs", to=translation.peer)
    assert vitrail.load(file).config == model.config


@pytest.mark.parametrize(
    ("name", "changes", "size"),
    [
        *((name, {"channels": 1}, 64) for name in ("resnet18", "convnext_atto", "efficientnet_b0", "mobilevit_xxs")),
        ("swinv2_tiny_window8", {}, 128),  # it moved from another grid, and pads nothing on this one
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_timm_builds_what_is_written(name: str, changes: dict, size: int, tmp_path: Path) -> None:
    model = randomise(create(name, num_classes=7, **changes)).resize(size)
    assert getattr(model.config, "trained_windows", ((8, 8),) * 4) == ((8, 8),) * 4
    vitrail.save(model, tmp_path / "ours")
    vitrail.convert(tmp_path / "ours", tmp_path / "theirs", to="timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'theirs'}", pretrained=True).eval()
    images = torch.randn(2, model.config.channels, size, size)
    expected = model(images)
    torch.testing.assert_close(theirs(images), expected, atol=1e-4 * expected.abs().max().item(), rtol=1e-3)


@pytest.mark.parametrize(
    ("name", "architecture", "changes"),
    [
        ("resnet18", "ResNet", {}),
        ("convnext_atto", "ConvNext", {}),
        ("mobilevit_xxs", "MobileViT", {}),
        ("efficientnet_b0", "EfficientNet", {"pad_after": (True, True, False, True, False), "eps": 1e-3}),
        ("swin_tiny_patch4_window7", "Swin", SMALL | {"attention": {"size": (2, 2), "padding": "after_shift"}}),
        ("swinv2_tiny_window8", "Swinv2", SMALL | {"attention": {"size": (3, 3), "padding": "before_shift"}}),
    ],
)
def test_transformers_builds_what_is_written(name: str, architecture: str, changes: dict, tmp_path: Path) -> None:
    model = randomise(create(name, num_classes=7, image_size=(64, 64), **changes))
    vitrail.save(model, tmp_path / "ours")
    vitrail.convert(tmp_path / "ours", tmp_path / "theirs", to="hf")
    cls = getattr(transformers, f"{architecture}ForImageClassification")
    theirs, found = cls.from_pretrained(tmp_path / "theirs", output_loading_info=True)
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    images = torch.randn(2, 3, 64, 64)
    expected = model(images)
    theirs_logits = theirs.eval()(images).logits
    torch.testing.assert_close(theirs_logits, expected, atol=1e-4 * expected.abs().max().item(), rtol=1e-3)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("swin_tiny_patch4_window7", {"image_size": (64, 64)}, "windows of 7 do not fill the grids of"),
        ("swin_tiny_patch4_window7", {"attention": {"size": (7, 4)}}, "has square windows and patches"),
        ("swin_tiny_patch4_window7", {"attention": "softmax"}, "has windows and an MLP with GELU"),
        ("efficientnet_b0", {}, "pads"),
        ("efficientnet_b0", {"pad_after": (True,) * 5, "final_dim": 8}, "b0 to b7"),
    ],
)
def test_what_transformers_has_no_words_for_is_refused(name: str, changes: dict, message: str) -> None:
    family, config = resolve(name)
    translation = next(each for each in TRANSLATIONS if each.name == f"hf {family.name}")
    with pytest.raises(Unsupported, match=message):
        translation.describe(apply(config, changes))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("swin_tiny_patch4_window7", {"image_size": (64, 64)}, "timm's Swin pads these after it shifts them"),
        ("swin_tiny_patch4_window7", {"attention": "softmax"}, "has windows in every block"),
        ("swinv2_tiny_window8", {"trained_windows": (8, 8, 8, (8, 6))}, "square"),
    ],
)
def test_what_timm_has_no_words_for_is_refused(name: str, changes: dict, message: str) -> None:
    family, config = resolve(name)
    translation = next(each for each in TRANSLATIONS if each.name == f"timm {family.name}")
    with pytest.raises(Unsupported, match=message):
        translation.describe(apply(config, changes))


def test_trained_windows_are_of_every_stage_or_none() -> None:
    translation = next(each for each in TRANSLATIONS if each.name == "timm swin_v2")
    beside = {"architecture": "swinv2_tiny_window8_256", "model_args": {"pretrained_window_sizes": [12, 12, 0, 0]}}
    with pytest.raises(CheckpointError, match="each stage"):
        translation.read(Weights(path=Path("x"), tensors={}, metadata={}, config=beside), None)


def test_timm_has_a_name_for_presets_alone() -> None:
    card = timm_card(create("resnet18", num_classes=3, channels=1).config)
    assert card["architecture"] == "resnet18"
    assert card["num_classes"] == 3
    assert card["model_args"] == {"in_chans": 1}
    with pytest.raises(Unsupported, match="presets"):
        timm_card(create("resnet18", depths=(1, 1, 1, 1)).config)


def test_an_option_may_have_one_value_alone() -> None:
    check = only("hidden_act", "relu", "gelu")
    assert check("gelu") == {}
    with pytest.raises(CheckpointError, match="hidden_act"):
        check("silu")
