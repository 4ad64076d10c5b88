"""Every family that a peer has: its weights, saved as the peer does, give the same logits and levels here."""

from pathlib import Path

import pytest
import torch
from parity import Case, compare, randomise
from parity_families import family_cases
from peers import timm, transformers

import vitrail
from vitrail.errors import CheckpointError, Unsupported
from vitrail.models.checkpoint.dialect import to_ours, to_theirs
from vitrail.models.checkpoint.families import TRANSLATIONS
from vitrail.models.checkpoint.files import Weights
from vitrail.models.checkpoint.translation import Translation, only, timm_card
from vitrail.models.registry import FAMILIES, build, create

every_translation = pytest.mark.parametrize("translation", TRANSLATIONS, ids=lambda each: each.name)


@pytest.mark.parametrize("case", family_cases(), ids=lambda case: f"{case.peer} {case.name}")
def test_parity(case: Case, tmp_path: Path) -> None:
    assert compare(case, tmp_path).worst <= 1e-10


@every_translation
def test_rules_are_a_round_trip(translation: Translation) -> None:
    family = FAMILIES[translation.family]
    model = randomise(build(family, next(iter(family.presets.values())).config))
    theirs = to_theirs(model, translation.rules(model.config))
    assert all(mark in theirs for mark in translation.marks)
    weights = Weights(path=Path("x"), tensors=theirs, metadata={})
    found = translation.read(weights, model.config)
    again = to_ours(found, model)
    for name, tensor in model.state_dict().items():
        assert torch.equal(again[name], tensor), name


@every_translation
def test_without_a_config_the_model_must_be_named(translation: Translation) -> None:
    with pytest.raises(CheckpointError, match="name the model"):
        translation.read(Weights(path=Path("x"), tensors={}, metadata={}), None)


@every_translation
def test_what_is_written_is_read_back(translation: Translation, tmp_path: Path) -> None:
    family = FAMILIES[translation.family]
    model = randomise(build(family, next(iter(family.presets.values())).config))
    vitrail.save(model, tmp_path / "ours")
    if translation.describe is None:
        with pytest.raises(Unsupported, match="does not write"):
            translation.write(model)
        return
    file = vitrail.convert(tmp_path / "ours", tmp_path / "theirs", to=translation.peer)
    assert vitrail.load(file).config == model.config


@pytest.mark.parametrize("name", ["resnet18", "convnext_atto", "efficientnet_b0", "mobilevit_xxs"])
def test_timm_builds_what_is_written(name: str, tmp_path: Path) -> None:
    model = randomise(create(name, num_classes=7, channels=1))
    vitrail.save(model, tmp_path / "ours")
    vitrail.convert(tmp_path / "ours", tmp_path / "theirs", to="timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'theirs'}", pretrained=True).eval()
    images = torch.randn(2, 1, 64, 64)
    expected = model(images)
    torch.testing.assert_close(theirs(images), expected, atol=1e-4 * expected.abs().max().item(), rtol=1e-3)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("resnet18", "ResNet"), ("convnext_atto", "ConvNext"), ("mobilevit_xxs", "MobileViT")],
)
def test_transformers_builds_what_is_written(name: str, architecture: str, tmp_path: Path) -> None:
    model = randomise(create(name, num_classes=7, image_size=(64, 64)))
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


def test_timm_has_a_name_for_presets_alone() -> None:
    card = timm_card(create("resnet18", num_classes=3, channels=1).config)
    assert card["architecture"] == "resnet18"
    assert card["num_classes"] == 3
    assert card["model_args"] == {"in_chans": 1}
    with pytest.raises(Unsupported, match="none for this one"):
        timm_card(create("resnet18", depths=(1, 1, 1, 1)).config)


def test_an_option_may_have_one_value_alone() -> None:
    check = only("hidden_act", "relu", "gelu")
    assert check("gelu") == {}
    with pytest.raises(CheckpointError, match="hidden_act is 'silu'; vitrail follows 'relu' or 'gelu' alone"):
        check("silu")
