"""Every family that a peer has: its weights, saved as the peer does, give the same logits and levels here."""

from pathlib import Path

import pytest
import torch
from parity import Case, compare, randomise
from parity_families import family_cases

import vitrail
from vitrail.errors import CheckpointError, Unsupported
from vitrail.models.checkpoint.dialect import to_ours, to_theirs
from vitrail.models.checkpoint.families import TRANSLATIONS
from vitrail.models.checkpoint.files import Weights
from vitrail.models.checkpoint.translation import Translation
from vitrail.models.registry import FAMILIES, build

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
