"""Regression: one or several numbers an image."""

from vitrail.tasks.regress.regression import Regress as Regress
from vitrail.tasks.regress.regression import RegressConfig as RegressConfig
