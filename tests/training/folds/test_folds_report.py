"""The page of a cross-validation: what it says of folds, and of a task whose answers have no mean."""

from pathlib import Path

import torch
from support.small_data import photos
from support.small_tasks import regressor

from vitrail.data.preprocess import Preprocess
from vitrail.runs.trained import TrainedModel
from vitrail.training.folds.folds_report import CrossValidation, folds_sections
from vitrail.training.folds.out_of_fold import Fold, pool, scores


def numbers_fold(number: int) -> Fold:
    task = regressor().eval()
    model = TrainedModel(source=f"fold-{number}", backbone=task.backbone, preprocess=Preprocess(), head=task)
    truth = torch.randn(12, 2, generator=torch.Generator().manual_seed(number))
    found = Fold(number, model, photos(12))
    found.add({"numbers": truth + 0.1}, {task.field: truth}, list(range(12)))
    return found


def test_folds_of_numbers_have_scores_and_no_ensemble() -> None:
    folds = (numbers_fold(1), numbers_fold(2))
    pooled = pool(folds)
    found = CrossValidation(
        folder=Path("run"), folds=folds, pooled=pooled, scores=tuple(scores(folds, pooled)), ensemble=None
    )
    sections = folds_sections(found)
    titles = [section.title for section in sections]
    assert titles[:4] == ["Out of fold", "Metrics of held-out images", "Folds", "Ensemble"]
    assert "no mean" in sections[3].text
    assert len(sections[2].rows) == 2
    assert "2 folds" in str(found)
