"""What a model costs, by layer: parameters, multiplications, and the memory that training keeps."""

from vitrail.profiling.count import Cost, cost, sketch
from vitrail.profiling.describe import describe

__all__ = ["Cost", "cost", "describe", "sketch"]
