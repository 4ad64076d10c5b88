"""One model of all folds: a run's folder whose task averages the answers of the folds' models."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.data.sources.opening import survey
from vitrail.data.sources.table import Wanted
from vitrail.errors import DataError
from vitrail.files import write_tensors
from vitrail.models.checkpoint import save
from vitrail.runs.evaluate import numbers
from vitrail.runs.record import Record, Result
from vitrail.runs.trained import BESIDE, TrainedModel, beside_model, open_model
from vitrail.training.folds.out_of_fold import Fold

OUT_OF_FOLD = "oof_"  # names of metrics on images that the fold's own model never saw begin so


def write_ensemble(folder: Path, folds: Sequence[Fold], pooled: Mapping[str, Any]) -> TrainedModel | None:
    """Writes the ensemble of some folds into a folder, and opens it; None for a task whose answers have no mean."""
    first = folds[0].model
    record, task = first.record, first.task.config.ensemble(len(folds))
    assert isinstance(record, Record)  # noqa: S101  (a fold is a run)
    if task is None:
        return None
    wanted, learned = _learned(record)
    joined = task.build(first.backbone, record.schema)
    joined.join([fold.held_out() for fold in folds])
    tensors = joined.state_dict()
    save(first.backbone, folder)
    write_tensors(folder / BESIDE, {name: tensors[name].cpu() for name in beside_model(joined)}, {})
    note = f"an ensemble of {len(folds)} folds: the mean of their answers"
    replace(record, task=task, wanted=wanted, learned=learned, notes=(*record.notes[:1], note)).write(folder)
    metrics = {f"{OUT_OF_FOLD}{name}": value for name, value in numbers(pooled).items()}
    Result(metrics=metrics, state=joined.state()).write(folder)
    return open_model(folder)


def _learned(record: Record) -> tuple[Wanted, str]:
    """How the data are read without a fold, and the fingerprint of its training images.

    Folds leave out the data's own test split, so a group may also be there: groups are then not asked for.
    """
    wanted = record.wanted._replace(fold=None)
    try:
        return wanted, _fingerprint(record, wanted)
    except DataError:
        if wanted.group is None:
            raise
    wanted = wanted._replace(group=None)
    return wanted, _fingerprint(record, wanted)


def _fingerprint(record: Record, wanted: Wanted) -> str:
    return survey(str(record.source), val=record.val, seed=record.seed, wanted=wanted).train.fingerprint
