"""Predictions for very many images: where they lie, the table they go to, and a cluster that shares the work."""
