"""Trained models, below all tools: the record of a run, the model with its preprocessing, prediction and evaluation."""
