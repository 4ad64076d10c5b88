"""The cost of a model by layer: parameters, multiply-accumulates, and activation memory in training."""

from vitrail.profiling.count import Cost, cost, sketch
from vitrail.profiling.describe import describe

__all__ = ["Cost", "cost", "describe", "sketch"]
