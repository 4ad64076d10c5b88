"""What a search says in the end: the choice, its figures, and that the best of many is the best by chance, too."""

from pathlib import Path

from support.registered import tiny
from support.small_tasks import classifier

from vitrail.data.preprocess import Preprocess
from vitrail.training.tuning.budget import Budget
from vitrail.training.tuning.journal import Trial
from vitrail.training.tuning.tuned import Tuned

TRAITS = {"method": "linear head", "size": "default"}


def trial(number: int, score: float) -> Trial:
    parts = (({"accuracy": score}, {"accuracy": score}),) * 5
    return Trial(
        key=str(number), number=number, about=f"way {number}", traits=TRAITS, state="over",
        metrics={"accuracy": score}, parts=parts, seconds=2.0,
    )  # fmt: skip


def tuned(folder: Path, *trials: Trial, chosen: int, nested: float | None = 0.71) -> Tuned:
    task = classifier(tiny(num_classes=5))
    return Tuned(
        source="run", backbone=task.backbone, preprocess=Preprocess(), head=task, folder=folder,
        budget=Budget("steps", 100, spent=90), trials=trials, default=trials[0], chosen=trials[chosen - 1],
        nested=nested, tested={1: 0.6, chosen: 0.7}, evaluation=None,
    )  # fmt: skip


def test_a_better_trial_is_named_with_both_scores(tmp_path: Path) -> None:
    left_out = Trial(key="x", number=0, about="a slow one", state="left out", reason="takes too long")
    found = tuned(tmp_path, trial(1, 0.625), trial(2, 0.75), left_out, chosen=2)
    text = str(found)
    assert "trial 2, way 2" in text
    assert all(number in text for number in ("75.0 %", "62.5 %", "71.0 %", "70.0 %", "60.0 %"))
    assert not found.default_was_best
    assert found.metrics == {"accuracy": 0.75}
    page = found.report().read_text()
    assert all(word in page for word in ("a slow one", "takes too long", "way 1", "standard error", "linear head"))


def test_a_default_that_was_best_is_said(tmp_path: Path) -> None:
    found = tuned(tmp_path, trial(1, 0.8), trial(2, 0.75), chosen=1)
    assert "default was best" in str(found)
    assert "75.0 %" in str(found)
    alone = tuned(tmp_path, trial(1, 0.8), chosen=1, nested=None)
    assert "default was best" in str(alone)
    assert "corrected" not in str(alone)
