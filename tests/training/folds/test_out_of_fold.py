"""Out-of-fold scores: means and deviations by hand, and intervals that know groups."""

import pytest
import torch
from support.small_data import photos
from support.small_tasks import classifier

from vitrail.data.preprocess import Preprocess
from vitrail.runs.trained import TrainedModel
from vitrail.training.folds.out_of_fold import Fold, pool, scores, write_table

CLASSES = ("dark", "light")


def fold(number: int, right: int, *, of: int = 20, groups: int | None = None) -> Fold:
    """A fold of which so many images are right."""
    from support.registered import tiny

    task = classifier(tiny(num_classes=2), CLASSES).eval()
    data = photos(of)
    labels = data.targets["label"]
    said = torch.where(torch.arange(of) < right, labels, 1 - labels)
    if groups is not None:
        data.groups = [f"{number} {index * groups // of}" for index in range(of)]
    model = TrainedModel(source=f"fold-{number}", backbone=task.backbone, preprocess=Preprocess(), head=task)
    found = Fold(number, model, data)
    for part in (slice(0, 7), slice(7, of)):
        ids = list(range(of))[part]
        found.add({"logits": 4 * torch.eye(2)[said[part]]}, {"label": labels[part]}, ids)
    return found


def accuracy(folds: list[Fold]):
    return next(score for score in scores(folds, pool(folds)) if score.name == "accuracy")


def test_mean_deviation_and_interval_by_hand() -> None:
    found = accuracy([fold(1, 18), fold(2, 16), fold(3, 14)])
    assert found.mean == pytest.approx(0.8)
    assert found.deviation == pytest.approx(0.1)
    half = 4.303 * 0.1 / 3**0.5
    assert found.interval == pytest.approx((0.8 - half, 1.0))
    assert found.pooled == pytest.approx(0.8)
    assert found.pooled_interval == pytest.approx((0.6822, 0.8820), abs=1e-3)  # Wilson's of 48 in 60


def test_images_of_a_group_are_not_independent() -> None:
    alone = accuracy([fold(1, 18), fold(2, 10)]).pooled_interval
    grouped = accuracy([fold(1, 18, groups=2), fold(2, 10, groups=2)]).pooled_interval
    assert grouped[1] - grouped[0] > alone[1] - alone[0]


def test_all_right_is_not_certain() -> None:
    low, high = accuracy([fold(1, 20), fold(2, 20)]).pooled_interval
    assert low < 0.95
    assert high == 1


def test_rows_name_image_fold_truth_and_answer() -> None:
    row = fold(2, 20, groups=4).rows[0]
    assert row["image"] == "0"
    assert (row["fold"], row["group"], row["truth"], row["label"]) == (2, "2 0", "dark", "dark")
    assert len(row["answers"]) == 2


def test_cells_that_a_spreadsheet_would_run_and_names_of_any_bytes(tmp_path) -> None:
    found = fold(1, 20)
    found.rows[0] |= {"image": "=cmd|' /C calc'!A0"}
    found.rows[1] |= {"image": "a\udcff.png"}
    write_table(tmp_path / "a.csv", [found])
    lines = (tmp_path / "a.csv").read_bytes().splitlines()
    assert lines[1].startswith(b"'=cmd")
    assert lines[2].startswith(b"a\xff.png")
