"""One model of all folds: a run's folder whose task averages the probabilities of the folds' models."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.data.sources.opening import survey
from vitrail.files import write_tensors
from vitrail.models.checkpoint import save
from vitrail.runs.evaluate import numbers
from vitrail.runs.record import Record, Result
from vitrail.runs.trained import BESIDE, TrainedModel, open_model
from vitrail.tasks.classify.classifier import Classifier, ClassifierConfig
from vitrail.tasks.classify.multi_label import MultiLabel
from vitrail.tasks.classify.one_class import Classify, mean_log_probability
from vitrail.tasks.task import Task
from vitrail.training.folds.out_of_fold import Fold

OUT_OF_FOLD = "oof_"  # names of metrics on images that the fold's own model never saw begin so


def can_join(task: Task) -> bool:
    """Whether models of a task can be averaged."""
    return isinstance(task, Classifier)


def write_ensemble(folder: Path, folds: Sequence[Fold], pooled: Mapping[str, Any]) -> TrainedModel:
    """Writes the ensemble of some folds into a folder, and opens it; its decisions are those of out-of-fold outputs."""
    first = folds[0].model
    record, config = first.record, first.task.config
    assert isinstance(record, Record)  # noqa: S101  (a fold is a run)
    assert isinstance(config, ClassifierConfig)  # noqa: S101  (checked by `can_join`)
    task = replace(config, members=len(folds))
    joined = task.build(None, record.schema)
    assert isinstance(joined, Classifier)  # noqa: S101  (a classifier's config builds one)
    if isinstance(joined, Classify):
        joined.load_state({"members": [_temperature(fold) for fold in folds]})
    _adopt(joined, folds)
    others = {
        f"others.{number}.{name}": tensor.cpu()
        for number, fold in enumerate(folds[1:])
        for name, tensor in fold.model.backbone.state_dict().items()
    }
    save(first.backbone, folder)
    write_tensors(folder / BESIDE, others, {})
    wanted, note = record.wanted._replace(fold=None), f"an ensemble of {len(folds)} folds: the mean of probabilities"
    learned = survey(str(record.source), val=record.val, seed=record.seed, wanted=wanted).train.fingerprint
    replace(record, task=task, wanted=wanted, learned=learned, notes=(*record.notes[:1], note)).write(folder)
    metrics = {f"{OUT_OF_FOLD}{name}": value for name, value in numbers(pooled).items()}
    Result(metrics=metrics, state=joined.state()).write(folder)
    return open_model(folder)


def _adopt(joined: Classifier, folds: Sequence[Fold]) -> None:
    """Takes over thresholds, or the decision of a goal, that the outputs of all folds together suggest."""
    if isinstance(joined, Classify) and joined.config.goal is None:
        return
    meter = joined.metrics()
    for fold in folds:
        logits = fold.logits
        if not isinstance(joined, MultiLabel):  # as the ensemble's are: logarithms of calibrated probabilities
            logits = mean_log_probability([logits], [_temperature(fold)])
        meter.update({"logits": logits}, {joined.field: fold.labels})
    joined.adopt(meter.compute())


def _temperature(fold: Fold) -> float:
    """That of a fold's model."""
    task = fold.model.task
    return task.temperature.temperature if isinstance(task, Classify) else 1.0
