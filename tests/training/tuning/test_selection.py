"""The choice: the default unless a trial is better by more than chance; and what the best of many is worth."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support.small_data import photos, split
from support.small_tasks import classifier, regressor

from vitrail.training.run import train
from vitrail.training.tuning.journal import Trial
from vitrail.training.tuning.selection import PARTS, choose, gain, is_perfect, nested_score, parted_scores

NAME = "accuracy"


def trial(number: int, *parts: float, name: str = NAME) -> Trial:
    """A trial with such scores on equal parts of the validation images."""
    mean = math.fsum(parts) / len(parts)
    rest = [(mean * len(parts) - part) / (len(parts) - 1) for part in parts]
    return Trial(
        key=str(number), number=number, about=f"trial {number}", state="over", metrics={name: mean},
        parts=tuple(({name: part}, {name: other}) for part, other in zip(parts, rest, strict=True)),
    )  # fmt: skip


def test_the_standard_error_is_that_of_the_mean_of_equal_parts() -> None:
    default, other = trial(1, 0.5, 0.5, 0.5, 0.5), trial(2, 0.5, 0.7, 0.5, 0.7)
    found, error = gain(classifier(), other, default)
    assert found == pytest.approx(0.1)
    assert error == pytest.approx(torch.tensor([0.0, 0.2, 0.0, 0.2]).std().item() / 2)  # of a mean of four


def test_a_trial_replaces_the_default_only_by_more_than_chance() -> None:
    task, default = classifier(), trial(1, 0.6, 0.6, 0.6, 0.6, 0.6)
    lucky, better = trial(2, 1.0, 0.6, 0.6, 0.6, 0.4), trial(3, 0.65, 0.65, 0.65, 0.6, 0.6)
    assert lucky.metrics[NAME] > better.metrics[NAME] > default.metrics[NAME]
    assert choose(task, [default, lucky]) is default
    assert choose(task, [default, lucky, better]) is better
    assert choose(task, [default]) is default
    assert choose(task, [default, trial(4, 0.6, 0.6, 0.6, 0.6, 0.6)]) is default


def test_where_less_is_better() -> None:
    task: Any = regressor()
    name = task.best_metric
    sign = 1 if task.about_metrics[name].higher else -1
    default, better = trial(1, *[0.5] * 5, name=name), trial(2, *[0.5 + sign * 0.1] * 5, name=name)
    assert choose(task, [default, better]) is better
    assert choose(task, [better, default]) is better


def test_the_corrected_score_of_noise_is_that_of_noise() -> None:
    draw = torch.Generator().manual_seed(0)
    trials = [trial(number, *(0.5 + 0.1 * torch.randn(5, generator=draw)).tolist()) for number in range(200)]
    task = classifier()
    best, corrected = choose(task, trials).metrics[NAME], nested_score(task, trials)
    assert best > 0.6
    assert corrected is not None
    assert corrected < best - 0.05


def test_nothing_is_better_than_all_right() -> None:
    task = classifier()
    assert is_perfect(task, trial(1, 1.0, 1.0))
    assert not is_perfect(task, trial(1, 1.0, 0.9))


def test_unknown_parts_are_left_out() -> None:
    bare = Trial(key="a", number=1, about="", state="over", metrics={NAME: 0.5})
    assert gain(classifier(), bare, bare) == (0.0, 0.0)
    assert nested_score(classifier(), [bare]) is None


@pytest.mark.parametrize("images", [10, 60])
def test_a_part_of_few_images_has_no_score_of_its_own(tmp_path: Path, images: int) -> None:
    data, options = split(photos(16), val=images), {"dim": 12, "depth": 1, "num_heads": 1}
    run = train(data, model="vit32_small", options=options, epochs=1, folder=tmp_path, silent=True, device="cpu")
    parts = parted_scores(run)
    assert len(parts) == PARTS
    assert all(bool(own) == (images == 60) and rest for own, rest in parts)
