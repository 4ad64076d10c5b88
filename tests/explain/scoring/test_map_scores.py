"""How thoroughly maps are scored."""

import pytest
import torch
from support.registered import pictures, tiny

from vitrail.errors import ConfigError
from vitrail.explain.methods.saliency import saliency
from vitrail.explain.methods.target import targets
from vitrail.explain.scoring.map_scores import MAX_STEPS, MIN_STEPS, Scoring, score_maps
from vitrail.explain.scoring.randomisation import shuffled
from vitrail.profiling.count import sketch


def test_quick_scores_have_fewer_steps_for_large_models() -> None:
    assert Scoring.of("quick", tiny(), 7) == Scoring(steps=MAX_STEPS, shuffle=False)
    assert Scoring.of("quick", sketch("beit_base_patch16"), 7) == Scoring(steps=MIN_STEPS, shuffle=False)
    middle = Scoring.of("quick", sketch("efficientformer_l1"), 7).steps
    assert MIN_STEPS < middle < MAX_STEPS
    assert Scoring.of("quick", sketch("efficientformer_l1"), 14).steps < middle
    assert Scoring.of("full", sketch("beit_base_patch16"), 7) == Scoring(steps=MAX_STEPS, shuffle=True)
    assert Scoring.of("quick", tiny(), 7, steps=3).steps == 3
    assert Scoring.of("none", tiny(), 7).steps == 0


def test_what_is_left_out_is_noted() -> None:
    assert Scoring(steps=MAX_STEPS, shuffle=True).note == ""
    assert "4 of 32 steps" in Scoring(steps=4, shuffle=False).note
    assert "shuffled" in Scoring(steps=MAX_STEPS, shuffle=False).note
    assert "none" in Scoring(steps=0, shuffle=False).note


def test_scores_of_maps_and_of_baselines() -> None:
    torch.manual_seed(0)
    model = tiny()
    images = pictures(model, 1)
    target = targets(model, images)
    maps = {"gradient": saliency(model, images, "gradient", target)}
    scores = score_maps(model, images, maps, target, Scoring(steps=2, shuffle=True), copied=shuffled(model))
    assert list(scores) == ["gradient", "random", "centre"]
    assert [score.baseline for score in scores.values()] == [False, True, True]
    assert abs(scores["gradient"].shuffled) < 0.999
    assert scores["random"].shuffled == scores["centre"].shuffled == 1
    assert all(score.pointing is None for score in scores.values())
    assert score_maps(model, images, maps, target, Scoring(steps=0, shuffle=False)) == {}


def test_bad_input() -> None:
    with pytest.raises(ConfigError, match="did you mean 'quick'"):
        Scoring.of("qick", tiny(), 7)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="steps is 0"):
        Scoring.of("quick", tiny(), 7, steps=0)
