"""K-fold cross-validation: every image is predicted once by a model that never saw it; an ensemble of the folds."""

from vitrail.training.folds.cross_validation import train_folds as train_folds
from vitrail.training.folds.folds_report import CrossValidation as CrossValidation
