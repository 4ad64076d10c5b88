"""Optimisers, their schedule, and the moving average of weights."""
