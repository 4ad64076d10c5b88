"""Tuning within a budget of time: trials by successive halving, the default first; the best one is what is kept."""

from vitrail.training.tuning.search import tune as tune
from vitrail.training.tuning.tuned import Tuned as Tuned
